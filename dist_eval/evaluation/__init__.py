"""An evaluation run: `runner` has its phases, from the options to the results.

`context` is what all kinds of runs have in common, `task` what is evaluated. `worker` predicts a rank's batches and
appends them to the journal, with an `audit` on request. `combination` brings the work of all
ranks together, `scoring` their predictions, `results` what is then known; `rescoring` is for a run that is complete.
`generation` is a run on prompts; it, and `dist_eval.harness`, have `requests` answered by a `request_model`. The run's
folder and journal are in `dist_eval.runs`.
"""
