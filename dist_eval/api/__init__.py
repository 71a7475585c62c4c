"""For programs of your own: `evaluate` in a training loop, `eval_batch`, and Petals' classifier to use them with."""
