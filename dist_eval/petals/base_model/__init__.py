"""Reads a base model from disk, for clients and servers alike.

`config` reads its config and checks that all of it was understood, `architecture` locates a decoder's embeddings,
layers and final norm, `embedding` computes the inputs of the first layer, `weights` reads tensors from safetensors,
`loading` makes models of them. `problem_types` has the losses and predictions of classification heads, `rope` the
positions of rotary embeddings.
"""
