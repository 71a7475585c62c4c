"""The folder of a run: its files, who uses it, and what it says to whoever looks at it later.

`run_folder` writes `results.json` and is locked by `folder_lock`; `journal` holds finished batches, `saved_predictions`
the predictions, `figures` draws the PNG files, `files` names them all, and `environment` records the versions.
`outcome`, `reading` and `task_samples` look at a run afterwards.
"""
