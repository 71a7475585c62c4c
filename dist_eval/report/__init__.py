"""Presentation of runs: what is printed at the end, the HTML page, and summaries for other tools.

`page` writes `report.html`: `evaluation` and `tasks` describe a run of their kind as a `document`, with the `work` of
ranks and servers, and `html` and `markdown` render any document. `table` formats the terminal output, `model_card`
writes metadata for a model card. `naming` hides local paths.
"""
