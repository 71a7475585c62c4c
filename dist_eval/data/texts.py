"""Columns of text: read from Arrow, and as bytes for hashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dist_eval.data.labels import FILL_IN
from dist_eval.data.readers import RowSource
from dist_eval.errors import DataError


def texts_in(source: RowSource, column: str, array: pa.Array, first_row: int, numbers: bool = False) -> list[str]:
    """Returns a chunk of a text column.

    Args:
        source: the rows, for messages.
        column: name of the column.
        array: the chunk.
        first_row: position of its first row.
        numbers: whether the column may hold numbers, or true and false; they are written as Arrow writes them.

    Raises:
        DataError: a text is missing, or the column holds something else.
    """
    if array.null_count:
        row = first_row + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{source.where(row)}: the text in column {column!r} is missing (null). {FILL_IN}")
    if numbers and (pa.types.is_primitive(array.type) and not pa.types.is_temporal(array.type)):
        array = array.cast(pa.string())
    if not pa.types.is_string(array.type):
        raise DataError(f"{source.file}: column {column!r} holds {array.type}, not text. Convert it, or name another.")
    return array.to_pylist()


def text_bytes(*columns: Sequence[str]) -> bytes:
    """Returns texts by columns as bytes, each preceded by its length, so that the boundaries matter for the hash."""
    return b"".join(f"{len(text)}:{text}".encode(errors="surrogatepass") for column in columns for text in column)
