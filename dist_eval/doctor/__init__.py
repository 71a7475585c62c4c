"""`dist-eval doctor`: checks hosts, ranks, inputs and swarm before a run.

Every rank runs the same checks: `checks` has those of one rank, `examination` those among ranks, and the order of all.
`findings` merges the findings of all ranks, and `config` has the options.
"""
