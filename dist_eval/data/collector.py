"""Columns of many rows, one array each: concatenated chunk by chunk, and narrowed for transfer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Columns = Mapping[str, np.ndarray]
"""Arrays by name, all with the same first axis: one row per example."""


class Collector:
    """Preallocated columns, filled chunk by chunk to avoid a second copy in memory.

    `like` has columns of the same names, dtypes and shapes of a row, with any number of rows.
    """

    def __init__(self, rows: int, like: Columns) -> None:
        self._rows, self._filled = rows, 0
        self._columns = {name: np.empty((rows, *column.shape[1:]), dtype=column.dtype) for name, column in like.items()}

    def add(self, part: Columns) -> None:
        """Appends rows, possibly `narrowed` ones; raises `ValueError` for more rows than expected."""
        begin, end = self._filled, self._filled + rows_in(part)
        if end > self._rows:
            raise ValueError(f"{end} rows received, {self._rows} expected")
        for name, column in self._columns.items():
            column[begin:end] = part[name]
        self._filled = end

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the rows in the order in which they were added."""
        return {name: column[: self._filled] for name, column in self._columns.items()}

    def sorted_by(self, name: str) -> dict[str, np.ndarray]:
        """Returns the rows sorted by a column; the collector cannot be used afterwards."""
        order = np.argsort(self._columns[name][: self._filled], kind="stable")
        return {name: self._columns.pop(name)[order] for name in list(self._columns)}


def rows_in(columns: Columns) -> int:
    """Returns the number of rows."""
    return len(next(iter(columns.values())))


def row_bytes(columns: Columns) -> int:
    """Returns the size of a row in bytes."""
    return sum(column.itemsize * int(np.prod(column.shape[1:])) for column in columns.values())


def narrowed(columns: Columns, start: int, stop: int) -> dict[str, np.ndarray]:
    """Returns consecutive rows for transfer, with integers in the smallest dtype that fits."""
    return {name: _narrowed(column[start:stop]) for name, column in columns.items()}


def _narrowed(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind != "i":
        return column
    limits = column.min(initial=0), column.max(initial=0)
    return column.astype(np.result_type(*map(np.min_scalar_type, limits)))
