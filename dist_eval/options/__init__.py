"""The options of runs: `groups` of options, combined into a `config`.

`prompts` has the options of language models, `harness` those of the harness' tasks.
"""
