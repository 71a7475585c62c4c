"""Presentation of runs: what is printed at the end, the HTML page, and summaries for other tools.

`shown` is a run of any kind as a `document`; `evaluation` (with `classes`) and `tasks` add what is their own, and
`sections` has what both show. `text`, `markdown` and `html` render any document. `page` writes `report.html` and
formats what a run prints, `model_card` writes metadata for a model card, `naming` hides local paths, `kinds` knows the
kinds of runs.
"""
