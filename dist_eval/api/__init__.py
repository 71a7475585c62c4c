"""The Python API: `evaluate` for a training loop, and `eval_batch` (`pipeline`).

`in_flight` has a model on a swarm answer several requests at a time. `loaders` shards a program's own DataLoader, and
`row_digest` hashes its rows. `run` starts whole runs, the commands `dist-eval run` and `harness`.
"""
