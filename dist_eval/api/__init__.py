"""The Python API: `evaluate` for a training loop, `eval_batch`, and a Petals classifier to use them with."""
