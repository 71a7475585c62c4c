"""This process on its host: temporary files, child processes, logging and limits. Independent of evaluation.

- `lifetime` removes a run's processes and files at its end, and `janitor` does so after a SIGKILL.
- `files` replaces files atomically, `parsing` reads JSON and YAML, and `shared_state` shares numbers
  between processes.
- `ports` finds free ports, `addresses` lists this host's addresses, and `slurm` queries Slurm.
- `programs` has exit statuses and output; `logging_setup` silences libraries, `memory` reuses freed buffers, and
  `patching` temporarily changes a library or this process.
"""
