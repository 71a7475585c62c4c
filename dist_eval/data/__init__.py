"""The dataset: read, checked row by row, tokenized once for each host, cut into batches.

`readers` opens files and hub datasets; `labels` and `label_columns` make classes or numbers of what stands there, by
the `problems` of transformers; `columns` reads further ones. `dataset` is what is tokenized, `plan` its batches,
`loaders` shards a program's own DataLoader. Nothing here knows ranks or models.
"""
