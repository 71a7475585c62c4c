"""The label column as references: the texts that a generated one may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

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
