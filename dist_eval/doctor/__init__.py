"""Checks before a run its hosts, its group of ranks, its inputs and its swarm: `dist_eval.doctor`.

Every rank collects facts (`host`, `inputs`, `shared_folder`, `swarm`, `group`), each within a time limit. Pure
functions derive findings from them (`checks`, `host_checks`, `run_checks`), and rank 0 prints these (`report`).
`examination` runs these steps.
"""
