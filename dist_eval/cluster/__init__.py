"""What the files in `launch/` call on a cluster: torchrun on hosts and in pods, batch jobs, lists of runs.

`hosts` finds this host's place among several, `agent` is torchrun with an exit status to act on, `job` runs an
evaluation as a batch job and `slurm` talks to Slurm, `sweep` reads a list of runs, `stop` passes on that a run should
end. A run itself needs none of them.
"""
