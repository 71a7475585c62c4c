"""Prompt tuning: soft prompts and a classification head, learned through a swarm, on any number of processes.

    dist-eval tune --nproc-per-node 2 --model MODEL --dataset FILE --initial-peers ADDRESS...

`tuner` runs a tuning, `epochs` its loop over epochs. `trainer` computes the updates, and `folder` saves the state that
an interrupted run resumes from. `config` has the options.
"""
