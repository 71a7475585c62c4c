"""The Python API: `evaluate` for a training loop, and `eval_batch` (`pipeline`).

`loaders` shards a program's own DataLoader. `run` starts whole runs, the commands `dist-eval run` and `harness`.
"""
