"""Presentation of runs: what is printed at the end, the HTML page, and summaries for other tools.

`evaluation` (with its `confusions` and `mistakes`) and `tasks` describe a run of their kind as a `document`, with
`slices`, the `work` of ranks and servers and the `phrases` beside tables; `text`, `markdown` and `html` render any
document. `page` writes `report.html` and formats what a run prints, `model_card` writes metadata for a model card,
`naming` hides local paths.
"""
