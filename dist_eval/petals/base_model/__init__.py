"""What is known of a base model: clients and servers read the same.

`config` reads its config, and checks that all of it was read, `architecture` finds out what of the decoder is
where, `embedding` computes the inputs of its first layer, `weights` reads tensors from safetensors, and `loading` makes
models of them.
"""
