"""Presentation of runs: what is printed at the end, the HTML page, and summaries for other tools.

`evaluation` and `tasks` describe a run of their kind as a `document`; `sections` has what both show. `text`, `markdown`
and `html` render any document. `page` writes `report.html` and formats what a run prints, `model_card` writes metadata
for a model card, `naming` hides local paths.
"""
