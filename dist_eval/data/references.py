"""The label column as references: the texts that a generated one may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dist_eval.data.labelled_rows import LabelledRows, draw_positions
from dist_eval.data.readers import FILL_IN, RowSource
from dist_eval.errors import DataError


def references_in(source: RowSource, column: str, array: pa.Array, first_row: int) -> list[list[str]]:
    """Returns the references of some rows: of each row one text or whole number, or a list of them.

    The answers of SQuAD, records with a list `text`, are such lists, too.

    Args:
        source: the rows, for messages.
        column: name of the column.
        array: the rows.
        first_row: position of the first one.

    Raises:
        DataError: a row has no reference, or the column holds something else.
    """
    if pa.types.is_struct(array.type) and array.type.get_field_index("text") >= 0:
        array = pa.compute.struct_field(array, "text")
    kind, is_list = array.type, False
    if pa.types.is_list(kind):
        kind, is_list = kind.value_type, True
    if pa.types.is_floating(kind):
        raise DataError(
            f"{source.file}: column {column!r} holds {array.type}, and such a number can be written in several ways "
            "(18 or 18.0, 1e6 or 1000000): write references as texts."
        )
    if not pa.types.is_string(kind) and (pa.types.is_temporal(kind) or not pa.types.is_primitive(kind)):
        raise DataError(
            f"{source.file}: column {column!r} holds {array.type}, not references: texts, or lists of them. "
            "Convert it, or name another."
        )
    values: list[Any] = array.cast(pa.list_(pa.string()) if is_list else pa.string()).to_pylist()
    rows = [value if is_list else [value] for value in values]
    missing = np.flatnonzero([not row or None in row for row in rows])
    if len(missing):
        row = first_row + int(missing[0])
        raise DataError(f"{source.where(row)}: the reference in column {column!r} is missing. {FILL_IN}")
    return rows


def draw_referenced(data: LabelledRows, count: int, seed: int) -> tuple[list[int], list[tuple[list[str], str]]]:
    """Draws examples for a prompt without replacement, the same rows as `draw_examples`.

    Args:
        data: the rows to draw from; those that are not drawn may lack their texts and references.
        count: number of rows to draw.
        seed: of the draw.

    Returns:
        The rows' positions in the file, in the order in which they were drawn; and the texts, by column, and the first
        reference of each.

    Raises:
        DataError: the file cannot be read, has too few rows, or a row has no text or no reference.
    """
    drawn = draw_positions(data, count, seed)
    source = data.open(np.sort(drawn))
    found: dict[int, tuple[list[str], str]] = {}
    first = 0
    for batch in source.batches:
        texts = zip(*data.texts(source, batch, first), strict=True)
        references = references_in(source, data.label_column, batch.column(batch.num_columns - 1), first)
        for place, (of_row, [reference, *_]) in enumerate(zip(texts, references, strict=True)):
            found[source.row(first + place)] = list(of_row), reference
        first += batch.num_rows
    return drawn.tolist(), [found[row] for row in drawn.tolist()]
