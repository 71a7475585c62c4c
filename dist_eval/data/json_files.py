"""JSON and JSON Lines files → record batches; the type of a column follows from all its values."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from dist_eval.data.plain_columns import ROWS_PER_BATCH, require_columns
from dist_eval.data.python_columns import MixedValuesError, PythonColumn
from dist_eval.data.text_files import not_utf8, read_chunks, read_lines, require_row_fits
from dist_eval.errors import DataError
from dist_eval.process.parsing import parse_json

_LARGEST_ARRAY_BYTES = 64 << 20
_PIECE_CHARACTERS = 1 << 20
_BLANKS = re.compile(r"[ \t\n\r]*")

Rows = Iterable[tuple[int, Any]]
"""Rows of a file, each with its size in characters."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has {next(n for n in names if names.count(n) > 1)!r} more than once")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large for a number")
    return value


_HOOKS: dict[str, Any] = {"object_pairs_hook": _object, "parse_float": _finite}
_DECODER = json.JSONDecoder(**_HOOKS)


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the values in JSON lines, each with its size in characters; a value may span several lines."""
    row, text, enough = 0, "", 0
    for line in itertools.chain(read_lines(path), [None]):
        text += line or ""
        if line is not None and len(text) < enough:
            continue
        begin = _end_of_blanks(text)
        try:
            while begin < len(text):
                value, end = _DECODER.raw_decode(text, begin)
                yield end - begin, value
                row, begin = row + 1, _end_of_blanks(text, end)
        except (ValueError, RecursionError) as error:
            is_complete = not isinstance(error, json.JSONDecodeError) or error.pos < len(text)
            if is_complete or line is None:
                why = f"{error.msg} (column {error.colno})" if isinstance(error, json.JSONDecodeError) else str(error)
                raise DataError(f"{path}, row {row} (counted from 0): is not valid JSON: {why}") from error
        text = text[begin:]
        require_row_fits(path, len(text))
        enough = 2 * len(text)  # so that a value of many lines is rarely tried again


def _end_of_blanks(text: str, start: int = 0) -> int:
    blanks = _BLANKS.match(text, start)
    return blanks.end() if blanks else start


def _pieces(rows: Rows) -> Iterator[list[Any]]:
    piece, size = [], 0
    for length, row in rows:
        piece.append(row)
        size += length
        if len(piece) == ROWS_PER_BATCH or size >= _PIECE_CHARACTERS:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


@contextmanager
def _naming_the_row(path: Path, column: str, first: int) -> Iterator[None]:
    try:
        yield
    except MixedValuesError as error:
        row = f"{path}, row {first + error.position} (counted from 0)"
        raise DataError(f"{row}: column {column!r} cannot be read ({error}).") from error


def _look_at(path: Path, rows: Rows, kinds: Mapping[str, PythonColumn]) -> list[str]:
    """Infers the types of columns; returns the names of all columns in any row."""
    names: dict[str, None] = {}
    first = 0
    for piece in _pieces(rows):
        for number, row in enumerate(piece, start=first):
            if not isinstance(row, dict):
                raise DataError(f"{path}, row {number}: must be an object with columns, not {row!r:.80}.")
            if not row.keys() <= names.keys():
                names.update(dict.fromkeys(row))
        for name, kind in kinds.items():
            with _naming_the_row(path, name, first):
                kind.add([row.get(name) for row in piece])
        first += len(piece)
    return list(names)


def _read_rows(path: Path, columns: list[str], read: Callable[[], Rows]) -> Iterator[pa.RecordBatch]:
    """Reads the rows twice, because the type of a column follows from all its values."""
    kinds = {name: PythonColumn() for name in columns}
    names = _look_at(path, read(), kinds)
    require_columns(str(path), columns, names or columns)
    first = 0
    for piece in _pieces(read()):
        arrays = []
        for name, kind in kinds.items():
            with _naming_the_row(path, name, first):
                arrays.append(kind.array([row.get(name) for row in piece]))
        yield pa.RecordBatch.from_arrays(arrays, names=list(kinds))
        first += len(piece)


def _array(path: Path) -> list[Any]:
    with pa.input_stream(path, compression="detect") as stream:
        content = stream.read(_LARGEST_ARRAY_BYTES + 1)
    if len(content) > _LARGEST_ARRAY_BYTES:
        raise DataError(
            f"{path} is a JSON array of over {_LARGEST_ARRAY_BYTES >> 20} MiB, which can only be read whole. Convert "
            "it to JSONL (one object per line), which is read piece by piece."
        )
    try:
        return list(parse_json(content.decode("utf-8-sig"), **_HOOKS))
    except UnicodeDecodeError as error:
        raise not_utf8(path) or error from error
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error


def read_json(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Reads a JSON array, or one object per line, piece by piece."""
    head = next((text for chunk in read_chunks(path) if (text := chunk.removeprefix(b"\xef\xbb\xbf").lstrip())), b"")
    if head.startswith(b"["):
        rows = [(0, row) for row in _array(path)]
        yield from _read_rows(path, columns, lambda: rows)
    elif head:  # one object per line, whatever the suffix
        yield from _read_rows(path, columns, lambda: _objects(path))
