"""This process on its host: its temporary files and children, its logging, its limits. Knows nothing of evaluations.

`lifetime` makes everything of a run end with it (`janitor` does so after a SIGKILL); `files` replaces files atomically,
`parsing` reads JSON and YAML within limits, `shared_state` has numbers that several processes read and write, `ports`
finds free ones, `addresses` are this host's, `slurm` queries Slurm, `memory` keeps what was freed, `logging_setup`
keeps libraries quiet, `programs` is what all programs have in common, `interpreter` refuses one without docstrings, and
`patching` changes a library or this process for a while.
"""
