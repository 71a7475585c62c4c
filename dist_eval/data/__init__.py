"""The dataset: read, validated row by row, tokenized once per host, and split into batches.

`files` finds the files of a dataset, `formats` checks and reads one of them, and `readers` all of them, or a hub
dataset; `in_memory` writes one of a data frame; `python_columns` finds out what type a column of JSON or mappings has;
`labels` converts the label column to classes or numbers, as `problem_types` requires; `columns` keeps further columns.
`labelled_rows` reads texts with their labels, and draws the examples of `prompts`; `selection` chooses rows, if not all
are wanted.
`dataset` is tokenized, with one of the `tokenizers`, and `plan` forms batches, whose `answers` have the columns that a
model declares; `shared_prefixes` plans those of texts that begin alike; `collector` puts columns together.
`continuations` are the data of a language model, and so are the prompts of `generation`, which `prompted_rows` makes of
a dataset; `token_file` holds the token ids of all. Nothing here depends on process groups or models.
"""
