"""`dist-eval plan`: predicts what a run would send and how long it would take.

`probe` sends a few batches as the run would, and estimates the time of the run from their answers. `record` defines the
output of `--json`, `table` formats it for a terminal, `runner` runs all steps, and `config` has the options.
"""
