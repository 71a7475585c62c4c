"""What a program is asked to do: options in `groups`, made into a `config`, and parsed by `commandline`.

`prompts` has those of language models, `harness` those of a harness' tasks, and `peers` reads the addresses of a swarm.
"""
