"""An evaluation run. `job` has its phases, which all kinds of evaluation go through, and the `Job` that each kind is.

`classification` and `generation` are jobs, between which `kinds` chooses; `requests` is what generation has in common
with `dist_eval.harness`. `context` is a rank's part of a run of any kind. `worker` predicts a rank's batches and
appends them to the journal, with an `audit` on request. `ranks` is what ranks agree on, and exchange. `inputs` reads
what options name, `scoring` computes metrics from the predictions of all ranks, `rescoring` those of a complete run,
and `printing` shows them.
"""
