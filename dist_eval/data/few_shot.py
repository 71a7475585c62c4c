"""Labelled examples for a prompt, drawn at random from a file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_eval.data.labels import LabelReader
from dist_eval.data.readers import open_rows
from dist_eval.data.texts import texts_in
from dist_eval.errors import DataError


def draw_examples(
    file: str | Sequence[str],
    count: int,
    seed: int,
    *,
    columns: Sequence[str],
    label_column: str,
    label_names: Sequence[str],
    labels: str = "auto",
) -> tuple[list[int], list[tuple[list[str], int]]]:
    """Draws rows without replacement, the same ones wherever it is called.

    Args:
        file: files with labelled rows (see `dist_eval.data.readers.open_rows`).
        count: number of rows to draw.
        seed: of the draw.
        columns: the columns with texts.
        label_column: the column with the labels.
        label_names: name of each class.
        labels: how to interpret the label column (see `LabelReader`).

    Returns:
        The rows' positions in the file, in the order in which they were drawn; and the texts, by column, and class of
        each.

    Raises:
        DataError: the file cannot be read, has too few rows, or a row has no text or no known label.
    """
    source = open_rows(file, [*columns, label_column])
    rows = sum(batch.num_rows for batch in source.batches)
    if rows < count:
        raise DataError(f"--few-shot {count} needs as many rows, but {source.name} has {rows}.")
    drawn = np.random.default_rng(seed).choice(rows, size=count, replace=False)
    source = open_rows(file, [*columns, label_column])
    reader, codes, found, first = LabelReader(source, label_column, label_names, labels), [], {}, 0
    for batch in source.batches:
        codes.append(reader.codes(batch.column(len(columns)), first))
        for row in drawn[(drawn >= first) & (drawn < first + batch.num_rows)].tolist():
            cells = [(name, batch.column(i).slice(row - first, 1)) for i, name in enumerate(columns)]
            found[row] = [texts_in(source, name, cell, row, numbers=True)[0] for name, cell in cells]
        first += batch.num_rows
    classes = reader.ids(np.concatenate(codes))
    return drawn.tolist(), [(found[row], int(classes[row])) for row in drawn.tolist()]
