"""Tasks of the lm-evaluation-harness on a swarm: its documents, few-shot examples and metrics; our plan and journal.

    dist-eval harness --nproc-per-node 4 --tasks hellaswag --model MODEL --initial-peers ADDRESS...

For the harness there is one process: the leader runs it, with `language_model` as its model. At the first call all
requests of all tasks become one dataset, which `dist_eval.evaluation.requests` sends through the model like any
evaluation: planned, journalled, gathered and proven by all ranks. `runner` is the whole run; `finding` finds the
harness' tasks, also those in `shipped_tasks/`, and `task_files` checks their files; `tasks` loads and runs them;
`notices` collects what the harness warns of; `metrics` reads their figures, and adds intervals. `inspection` lists
tasks, and checks them.

`lm_eval` is imported in `finding`, `language_model`, `notices`, `task_files` and `tasks` only, on the leader; and by
`dist_eval.options.harness`, where `--gen-kwargs` and `--metadata` are given.
"""
