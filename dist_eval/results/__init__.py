"""Typed records of the files that runs write: `results.json` and `tuning.json`.

`run` has the content of `results.json` by the status of the run, `tuning` that of `tuning.json`; `scores`, `inputs`,
`work` and `tasks` have their sections. `dist_eval.record` is their base class, and `dist_eval.schema` makes the
published JSON Schema from them.
"""
