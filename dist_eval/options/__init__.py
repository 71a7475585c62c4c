"""What a run is asked to do: options in `groups`, made into a `config`.

`prompts` has those of language models, `harness` those of a harness' tasks.
"""
