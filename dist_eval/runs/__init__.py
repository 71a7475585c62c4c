"""The folder of a run: its files, who uses it, and what it says to whoever looks at it later.

`run_folder` is the folder of any kind of run, locked by `folder_lock`, and `evaluation_folder` that of an evaluation.
`journal` holds finished batches, `saved_predictions` the predictions, `figures` draws the PNG files, `files` names them
all, and `environment` records the versions. `outcome`, `reading` and `task_samples` look at a run afterwards,
`overview` at several.
"""
