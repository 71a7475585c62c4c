"""Typed records of the files that runs write: `results.json`, `tuning.json` and `timeline.json`.

`run` has the files as a whole, by the status of the run; `scores`, `inputs` and `work` have their sections, and
`record` what all records share. The published JSON Schema is made from them (see `dist_eval.schema`).
"""
