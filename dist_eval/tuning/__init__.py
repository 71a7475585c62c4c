"""Prompt tuning: soft prompts and a classification head, learned through a swarm, on any number of processes.

    torchrun --nproc_per_node=2 -m dist_eval.tuning --model MODEL --dataset FILE --initial-peers ADDRESS...

`tuner.py` runs a tuning, `epochs.py` its loop over epochs; `trainer.py` makes the updates, `checks.py` evaluates after
each epoch, `state.py` and `folder.py` save what an interrupted run resumes from. `convert.py` reads older, pickled
exports.
"""
