"""Presentation of runs: the table on the terminal, the HTML page, and summaries for other tools.

`table` formats the terminal output, `page` renders `report.html` from `sections` and `charts`, and `tasks_page` that of
a run on tasks or prompts, whose terminal output is in `tasks_table`, both in the same `layout`. `runs_page` renders the
page of many runs, with the `differences` of their options and with `pairs` and `task_pairs` of them side by side.
`markdown` and `model_card` write summaries for pull requests and model cards. `naming` hides local paths.
"""
