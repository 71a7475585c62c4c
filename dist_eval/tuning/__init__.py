"""Prompt tuning: soft prompts and a classification head, learned through a swarm, on any number of processes.

    torchrun --nproc_per_node=2 -m dist_eval.tuning --model MODEL --dataset FILE --initial-peers ADDRESS...

`tuner.py` conducts a run; `trainer.py` makes the updates, `checks.py` evaluates after each epoch, `state.py` and
`folder.py` keep what an interrupted run goes on from. `convert.py` reads older, pickled exports.
"""
