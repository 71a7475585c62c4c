"""The Python API: `evaluate` for a training loop, `eval_batch` (`pipeline`), and a `petals_classifier` to use them on.

`loaders` shards a program's own DataLoader. `run` starts whole runs, the commands `dist-eval run` and `harness`.
"""
