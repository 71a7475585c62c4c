"""`dist-eval plan`: what a run would send and how long it would take, before a night is spent on it.

`probe` sends a few batches as the run would, and computes from their answers how long all of them will take. `record`
has what `--json` prints, `table` formats it for a terminal, `runner` does all of it in order.
"""
