"""Presentation of a run: the table on the terminal, PNG figures, the HTML page, and summaries for other tools.

`table` formats the terminal output, `page` renders `report.html` from `sections` and `charts`, `markdown` and
`model_card` write summaries for pull requests and model cards, and `figures` draws the PNG files.
"""
