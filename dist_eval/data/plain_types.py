"""The ways in which Arrow holds the same values → one of them: `string` for text, `list` for lists, no encodings.

Polars, DuckDB and pandas write texts as views, with long offsets, or as dictionaries, and Parquet files remember that.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch of the same values in columns of plain types; those without one stay as they are."""
    return pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], names=batch.schema.names)


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        return _plain(array.dictionary).take(array.indices)
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if isinstance(array, (pa.ListViewArray, pa.LargeListViewArray)):  # whose cast fails where one is null
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, _plain(array.flatten()), mask=array.is_null())
    kind = _plain_type(array.type)
    try:
        return array if kind == array.type else array.cast(kind)
    except pa.ArrowNotImplementedError:
        return array  # whoever needs it says what it holds


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
