"""The folder of a run: its files, its lock, and reading it later.

`run_folder` manages the folder of any kind of run; `folder_lock` locks it, and `found_results` decides whether a run
may resume. `evaluation_folder` adds the files of an evaluation. `fingerprint` identifies the inputs, `journal` stores
finished batches (as `journal_records`), `saved_samples` stores predictions or generated texts, `plots` draws plots,
`files` names all files, `digests` detect damage, and `environment` records versions. `outcome`, `reading` and
`task_samples` read a run afterwards.
"""
