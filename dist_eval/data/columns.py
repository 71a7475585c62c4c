"""Further columns of a dataset, used for slices and groups: kept as text in an Arrow file beside the tokens.

Values of any type are converted to text: in CSV they are text anyway, and a slice of `true` or `3` is then the same in
any file format. The file is memory-mapped, so that no rank holds rows as Python objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.errors import DataError

_FILE = "columns.arrow"


class ColumnWriter:
    """Writes columns in chunks.

    Args:
        folder: an existing folder.
        source: name of the dataset, for messages.
        names: names of the columns.
    """

    def __init__(self, folder: Path, source: str, names: Sequence[str]) -> None:
        self._source, self._names = source, list(names)
        self._schema = pa.schema([(name, pa.string()) for name in names])
        self._sink = pa.OSFile(str(folder / _FILE), "wb")
        self._writer = pa.ipc.new_file(self._sink, self._schema)

    def __enter__(self) -> ColumnWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._sink.close()

    def write(self, arrays: Sequence[pa.Array]) -> None:
        """Writes the next rows.

        Args:
            arrays: one for each column, in their order.

        Raises:
            DataError: a column has a type that cannot be converted to text, such as lists.
        """
        texts = [self._text(name, array) for name, array in zip(self._names, arrays, strict=True)]
        self._writer.write_batch(pa.record_batch(texts, schema=self._schema))

    def _text(self, name: str, array: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_floating(array.type):
            array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
        try:
            return array.cast(pa.string())
        except pa.ArrowException as error:
            raise DataError(
                f"{self._source}: column {name!r} holds {array.type}; --slice-by and --group-column take columns of "
                "text, numbers, dates, or true and false."
            ) from error


def read_column(folder: Path, name: str) -> pa.Array:
    """Returns a column that was written to a folder, as text, null where a value is missing."""
    with pa.memory_map(str(folder / _FILE)) as source:
        return pa.ipc.open_file(source).read_all().column(name).combine_chunks()


def group_numbers(column: pa.Array, name: str, source: str) -> np.ndarray:
    """Returns the number of each row's group, int64 of shape [rows].

    Args:
        column: the name of each row's group.
        name: name of the column.
        source: name of the dataset, for messages.

    Raises:
        DataError: the group of a row is missing.
    """
    missing = pc.or_kleene(pc.is_null(column), pc.equal(pc.utf8_trim_whitespace(column), "")).to_numpy(
        zero_copy_only=False
    )
    if missing.any():
        raise DataError(
            f"{source}, row {int(missing.argmax())} (counted from 0): the group in column {name!r} is missing. Give "
            "each row a group; a row that belongs to no other is a group of its own."
        )
    return column.dictionary_encode().indices.to_numpy().astype(np.int64)
