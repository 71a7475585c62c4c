"""Says before a run what is wrong with its hosts, its group of ranks, its inputs or its swarm: `dist_eval.doctor`.

Every rank collects facts (`host`, `inputs`, `shared_folder`, `swarm`, `group`), each within a time limit. What they
mean is decided by pure functions (`checks`, `host_checks`, `run_checks`), and told by rank 0 (`report`). `examination`
conducts.
"""
