"""Presentation of runs: the printed results, the HTML page, and summaries for other tools.

`shown` presents a run of any kind as a `document`; `evaluation` (with `classes`) and `tasks` add their own sections,
and `sections` has those of both. `text`, `markdown` and `html` render any document. `page` writes `report.html` and
formats the printed results, `model_card` writes metadata for a model card, `naming` hides local paths, `kinds` chooses
the class for a kind of run.
"""
