"""The folder of a run: its files, who uses it, and what it says to whoever looks at it later.

`run_folder` is the folder of any kind of run, locked by `folder_lock`, which may go on with `found_results`;
`evaluation_folder` is that of an evaluation of any kind. `fingerprint` is what a run depends on, `journal` holds
finished batches, `saved_samples` predictions or generated texts, `plots` draws plots, `files` names all files,
`digests` tell whether they are damaged, and `environment` records the versions.
`outcome`, `reading` and `task_samples` look at a run afterwards.
"""
