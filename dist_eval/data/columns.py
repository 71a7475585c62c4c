"""Further columns of a dataset, for slices and groups: stored as text in an Arrow file beside the tokens.

All values are converted to text, so slices of `true` or `3` are the same in any file format. Ranks memory-map the file
and need no Python objects for its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.errors import DataError

_FILE = "columns.arrow"


@contextmanager
def column_writer(folder: Path, source: str, names: Sequence[str]) -> Iterator[Callable[[Sequence[pa.Array]], None]]:
    """Opens the file of columns for writing, in chunks."""
    schema = pa.schema([(name, pa.string()) for name in names])
    with pa.OSFile(str(folder / _FILE), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:

        def write(arrays: Sequence[pa.Array]) -> None:
            texts = [_text(source, name, array) for name, array in zip(names, arrays, strict=True)]
            writer.write_batch(pa.record_batch(texts, schema=schema))

        yield write


def _text(source: str, name: str, array: pa.Array) -> pa.Array:
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    try:
        return array.cast(pa.string())
    except pa.ArrowException as error:
        raise DataError(
            f"{source}: column {name!r} holds {array.type}; --slice-by and --group-column accept text, numbers, dates "
            "and booleans."
        ) from error


def read_column(folder: Path, name: str) -> pa.Array:
    """Returns a column of a folder as text; missing values are null."""
    with pa.memory_map(str(folder / _FILE)) as source:
        return pa.ipc.open_file(source).read_all().column(name).combine_chunks()


def group_numbers(column: pa.Array, name: str, where: Callable[[int], str]) -> np.ndarray:
    """Returns the number of each row's group, int64 of shape [rows]; `column` has the groups' names.

    Refuses a row without a group; `where` returns the location of a row, for the message.
    """
    is_missing = pc.or_kleene(pc.is_null(column), pc.equal(pc.utf8_trim_whitespace(column), ""))
    missing = is_missing.to_numpy(zero_copy_only=False)
    if missing.any():
        raise DataError(
            f"{where(int(missing.argmax()))}: the group in column {name!r} is missing. Give "
            "each row a group. A row without related rows gets a group of its own."
        )
    return column.dictionary_encode().indices.to_numpy().astype(np.int64)
