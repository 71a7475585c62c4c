"""Communication between ranks: store, collectives, progress, stopping.

`rank_store` is a key-value store on torchrun's store with a time limit for each call. `collectives` are exchanges in a
process group. Nothing else is exchanged through torch.distributed. `progress` tracks the progress of all ranks
(`display` shows it, `tracked_progress` logs it), and `stop` shuts them down gracefully.
"""
