"""Tasks of the lm-evaluation-harness on a swarm: its documents, few-shot examples and metrics, with our batches.

    dist-eval harness --nproc-per-node 4 --tasks hellaswag --model MODEL --initial-peers ADDRESS...

The harness sees one process: the leader runs it, with `language_model` as its model. At the first call, all requests of
all tasks become one dataset, which `dist_eval.evaluation.requests` sends through the model like any evaluation:
planned, journalled, gathered and checked for coverage by all ranks. `runner` is the whole run; `finding` finds tasks,
including those in `shipped_tasks/`; `tasks` loads and runs them; `examples` keeps questions out of their own few-shot
examples; `notices` collects the harness' warnings; `metrics` reads its metrics and adds intervals; `decodings` says how
texts are generated.

`lm_eval` is imported only here, on the leader, and by `dist_eval.options.harness` for `--gen-kwargs` and `--metadata`.
"""
