"""The classifier: prompts and head on this host, the blocks of the base model in a swarm or here.

`base` and `checkpoint` read what a person names, `tuned_model` holds the tuned weights; `backbone`, `classifier` and
`full_model` compute, `backends` chooses; `forward` sends batches through, as many at a time as the `window` lets.
"""
