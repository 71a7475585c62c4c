"""What a person gets from a run: tables, pictures, the page, and summaries for other places.

`table` is what is printed at the end, `page` makes `report.html` out of its `sections` and `charts`, `markdown` and
`model_card` are for other places, `figures` draws the confusion matrix, `saved_predictions` writes and reads the
predictions, and `files` names the files of a run's folder.
"""
