"""`dist-eval plan`: what a run would send and how long it would take, before a night is spent on it.

`contents` describes the data and the batches, `probe` sends a few batches as the run would, and `estimate`
computes from their answers how long all of them will take. `runner` does these in order, `record` has what `--json`
prints, `table` formats it for a terminal.
"""
