"""Communication between ranks: store, collectives, progress, stopping.

`rank_store` is a key-value store on torchrun's, with a time limit for each call; `collectives` are
exchanges in a process group; nothing else is exchanged through torch.distributed. `progress` tracks how far all ranks
are, `stop` shuts them down gracefully.
"""
