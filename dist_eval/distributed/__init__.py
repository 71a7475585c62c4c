"""The processes among each other: store, collectives, progress, stopping.

`rank_store` is the store that torchrun keeps, waited for within limits (`limited_store`); `collectives` the exchange in
a process group; no other module imports torch.distributed. `progress` knows how far all are, `stop` shuts them down
gracefully, `timeline` notes what this one did when.
"""
