"""The folder of a run: its files, who uses it, and what it says to whoever looks at it later.

`run_folder` is the folder of any kind of run, locked by `folder_lock`, `evaluation_folder` that of an evaluation, and
`requests_folder` that of a run on tasks or prompts; `no_folder` stands for none. `fingerprint` is what a run depends
on, `journal` holds finished batches, `saved_predictions` the predictions, `saved_texts` generated texts, `plots`
draws plots, `files` names all files, `digests` tell whether they are damaged, and `environment` records the versions.
`outcome`, `reading` and `task_samples` look at a run afterwards.
"""
