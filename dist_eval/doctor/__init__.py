"""Checks before a run its hosts, its group of ranks, its inputs and its swarm: `dist-eval doctor`.

Every rank runs the same checks: `checks` has those of one rank, `examination` those among ranks, and their order.
`findings` has what a check finds, and brings together those of all ranks.
"""
