"""The processes among each other: store, collectives, progress, stopping.

`board` is the store that torchrun keeps, waited for within limits (`limited_store`); `collectives` the exchange in a
process group; no other module imports torch.distributed. `progress` knows how far all are, `stopping` ends them in good
order, `timeline` notes what this one did when.
"""
