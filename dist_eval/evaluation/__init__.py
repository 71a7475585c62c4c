"""An evaluation run: `runner` has its phases, from the options to the results.

`context` is a rank's part of a run of any kind, and all kinds have their samples answered by `drive`: `worker`
predicts a rank's batches and appends them to the journal, with an `audit` on request. `task` is what is evaluated,
`scoring` brings the predictions of all ranks together; `rescoring` is for a run that is complete. `generation` is a run
on prompts; it, and `dist_eval.harness`, have `requests` answered. The run's folder and journal are in `dist_eval.runs`.
"""
