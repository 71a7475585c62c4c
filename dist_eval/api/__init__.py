"""The Python API: `evaluate` for a training loop, and `eval_batch` (`pipeline`).

`in_flight` sends several requests of a model on a swarm at a time. `loaders` shards a program's own DataLoader, and
`row_digest` hashes its rows. `run` starts whole runs, as `dist-eval run` and `dist-eval harness` do.
"""
