"""Columns of record batches: each requested one is present once, and has a plain type."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.errors import DataError

ROWS_PER_BATCH = 2048
"""Maximum number of rows in a batch, because the tokenizer needs a hundred times the memory of a row's text."""


class MissingColumnError(DataError):
    """A file lacks a column."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


# by the default names of columns
_NAMING = {
    "text": " Name yours with --text-column; with --prompt, in the prompt.",
    "label": " Name yours with --label-column.",
}


def require_columns(name: str, columns: Sequence[str], available: Sequence[str], hint: str = "") -> None:
    """Checks that a dataset has the requested columns, and each column once."""
    doubled = sorted({c for c in available if list(available).count(c) > 1})
    if doubled:
        raise DataError(f"{name} has the column {doubled[0]!r} more than once.")
    for column in columns:
        if column not in available:
            shown = ", ".join(available[:20]) + (", ..." if len(available) > 20 else "")
            forms = {other.strip().casefold(): other for other in reversed(available)}
            close = difflib.get_close_matches(form := column.strip().casefold(), forms, n=1)
            if close and (close[0] == form or not hint):
                hint = f" Did you mean {forms[close[0]]!r}?"
            naming = _NAMING.get(column, "")
            raise MissingColumnError(f"{name} has no column {column!r}. It has: {shown}.{hint}{naming}", column)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch with the same values in plain types, where there is one."""
    return pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], names=batch.schema.names)


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        return _plain(array.dictionary).take(array.indices)
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if isinstance(array, (pa.ListViewArray, pa.LargeListViewArray)):  # their cast fails for null
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, _plain(array.flatten()), mask=array.is_null())
    kind = _plain_type(array.type)
    try:
        return array if kind == array.type else array.cast(kind)
    except pa.ArrowNotImplementedError:
        return array  # the code that needs it reports its type


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    return kind
