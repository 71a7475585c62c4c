"""Reads a base model from disk, for clients and servers alike.

`config` reads its config and checks that transformers understands all of it, `architecture` locates a decoder's
embeddings, layers and final norm, `embedding` computes the inputs of the first layer, `weights` reads tensors from
safetensors, and `loading` builds models from them. `problem_types` has the losses and predictions of classification
heads, and `rope` handles rotary embeddings.
"""
