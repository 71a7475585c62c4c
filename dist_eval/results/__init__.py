"""Typed records of the files that runs write: `results.json` and `tuning.json`.

`run` has the content of `results.json` by the status of the run, `tuning` that of `tuning.json`; `scores`, `inputs`,
`work` and `harness` have their sections, and `record` what all records share. The published JSON Schema is made
from them, by `dist_eval.schema`.
"""
