"""The dataset: read, validated row by row, tokenized once per host, and split into batches.

- Reading: `files` finds the files of a dataset. `formats` reads one of them (with `text_files`, `csv_files`,
  `json_files` and `plain_columns`), and `readers` reads all of them or a hub dataset. `in_memory` writes data frames to
  a file. `python_columns` infers the type of a column of JSON or mappings.
- Labels: `labels` and `label_columns` convert the label column to classes or numbers; `columns` stores further columns.
- Rows: `labelled_rows` reads texts with their labels and draws the examples of `prompts`. `selection` selects rows.
- Tokens: `dataset` holds a tokenized dataset, `continuations` and `generation` the requests of a language model.
  `prompted_rows` makes prompts of a dataset, which `chat` frames. `tokenizers` loads tokenizers and `token_file`
  stores token ids.
- Batches: `plan` forms batches. `shared_prefixes` and `shared_contexts` plan texts with a common prefix, by
  `prefix_costs`. `answers` declares the columns of answers and `collector` concatenates them.

A *row* is numbered in the whole dataset, which is the `index` of a prediction; a *position* among the selected rows,
which are all rows by default. Plans and batches have rows of a dataset, and positions among requests.

Nothing here depends on process groups or models.
"""
