"""Helpers for clusters, called by the files in `launch/`: torchrun on hosts and in pods, batch jobs, lists of runs.

`hosts` finds this host's node rank and address, `agent` is torchrun with a meaningful exit status, `job` runs an
evaluation as a batch job, `run_lists` reads lists and grids of runs, and `stop` stops a run. A run itself needs none of
them.
"""
