"""The Python API: `evaluate` for a training loop, and `eval_batch` (`pipeline`).

`loaders` shards a program's own DataLoader, and `row_digest` hashes its rows. `run` starts whole runs, the commands
`dist-eval run` and `harness`.
"""
