"""An evaluation run: `runner` has its phases, from the options to the results.

`work` predicts a rank's batches and appends them to the journal, with an `audit` or a `backend_comparison` on
request; `combination` gathers and reduces the results of all ranks, and `results` makes their record; `completed`
rescores a run that is complete. The run's folder and journal are in `dist_eval.runs`.
"""
