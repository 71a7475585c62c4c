"""JSON and JSON Lines files → record batches; the type of a column follows from all its values."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import json as pa_json

from dist_eval.data.plain_columns import ROWS_PER_BATCH, require_columns
from dist_eval.data.python_columns import MixedValuesError, PythonColumn
from dist_eval.data.text_files import read_chunks, read_lines, require_row_fits, with_growing_blocks
from dist_eval.errors import DataError
from dist_eval.process.parsing import parse_json

_LARGEST_ARRAY_BYTES = 64 << 20
_PIECE_CHARACTERS = 1 << 20
_DEEPEST = 200  # levels of nesting: pyarrow's reader has a stack to overflow

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STEPS, _NO_STEPS = bytes.maketrans(b"[{]}", b"\1\1\xff\xff"), bytes(set(range(256)) - set(b"[]{}"))


def _nesting(content: bytes, before: int = 0) -> tuple[int, int]:
    """Returns how deeply a part of JSON that ends outside of texts is nested, at most and at its end."""
    outside = b"".join(_ESCAPED.sub(b"", content).split(b'"')[::2])
    depths = before + np.cumsum(np.frombuffer(outside.translate(_STEPS, _NO_STEPS), np.int8), dtype=np.int64)
    return (int(depths.max()), int(depths[-1])) if len(depths) else (before, before)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has {next(n for n in names if names.count(n) > 1)!r} more than once")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _require_flat_json(path: Path) -> None:
    """Rejects JSON lines with a row that is too large, or nested deeply enough to crash the parser."""
    depth, rest = 0, b""
    for chunk in itertools.chain(read_chunks(path), [b"\n"]):
        lines, _, rest = (rest + chunk).rpartition(b"\n")  # no string continues after a line break
        deepest, depth = _nesting(lines, depth)
        if deepest > _DEEPEST:
            raise DataError(f"{path}: a row is nested over {_DEEPEST} levels deep.")
        require_row_fits(path, len(rest))


def _values_in(text: str) -> list[tuple[int, Any]]:
    values, end = [], 0
    while rest := text[end:].lstrip():
        begin = len(text) - len(rest)
        value, end = _DECODER.raw_decode(text, begin)
        values.append((end - begin, value))
    return values


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the values in JSON lines, each with its size in characters; a value may span several lines."""
    parts: list[str] = []
    depth = 0
    for line in read_lines(path):
        parts.append(line)
        if len(parts) > 1:
            depth = _nesting(line.encode(), depth)[1]
            if depth > 0:
                continue
        try:
            yield from _values_in("".join(parts))
        except ValueError:
            depth = _nesting(line.encode())[1]
            if len(parts) > 1 or depth <= 0:
                raise
        else:
            parts.clear()
    yield from _values_in("".join(parts))


def _pieces(rows: Iterable[tuple[int, Any]]) -> Iterator[list[Any]]:
    piece, size = [], 0
    try:
        for length, row in rows:
            piece.append(row)
            size += length
            if len(piece) == ROWS_PER_BATCH or size >= _PIECE_CHARACTERS:
                yield piece
                piece, size = [], 0
    except ValueError:  # raised by the next row
        yield piece
        raise
    if piece:
        yield piece


@contextmanager
def _naming_the_row(path: Path, column: str, first: int) -> Iterator[None]:
    try:
        yield
    except MixedValuesError as error:
        row = f"{path}, row {first + error.position} (counted from 0)"
        raise DataError(f"{row}: column {column!r} cannot be read ({error}).") from error


def _look_at(path: Path, pieces: Iterable[list[Any]], kinds: Mapping[str, PythonColumn]) -> list[str]:
    """Infers the types of columns; returns the names of all columns in any row."""
    names: dict[str, None] = {}
    first = 0
    for piece in pieces:
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


def _python_batches(
    path: Path, pieces: Iterable[list[Any]], kinds: Mapping[str, PythonColumn]
) -> Iterator[pa.RecordBatch]:
    first = 0
    for piece in pieces:
        arrays = []
        for name, kind in kinds.items():
            with _naming_the_row(path, name, first):
                arrays.append(kind.array([row.get(name) for row in piece]))
        yield pa.RecordBatch.from_arrays(arrays, names=list(kinds))
        first += len(piece)


def _read_json_array(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pa.input_stream(path, compression="detect") as stream:
        content = stream.read(_LARGEST_ARRAY_BYTES + 1)
    if len(content) > _LARGEST_ARRAY_BYTES:
        raise DataError(
            f"{path} is a JSON array of over {_LARGEST_ARRAY_BYTES >> 20} MiB, which can only be read whole. Convert "
            "it to JSONL (one object per line), which is read piece by piece."
        )
    try:
        rows = parse_json(content.decode("utf-8-sig"), object_pairs_hook=_object)
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}") from error
    kinds = {name: PythonColumn() for name in columns}
    names = _look_at(path, _pieces((0, row) for row in rows), kinds)
    require_columns(str(path), columns, names or columns)
    yield from _python_batches(path, _pieces((0, row) for row in rows), kinds)


def _read_json_lines(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Reads the file twice, because Arrow infers types from the first rows only, and dates from text."""
    _require_flat_json(path)
    kinds = {name: PythonColumn() for name in columns}
    problem: ValueError | None = None
    try:
        names = _look_at(path, _pieces(_objects(path)), kinds)
    except ValueError as error:
        problem = error
    else:
        require_columns(str(path), columns, names or columns)
        if any(kind.is_text_of_numbers for kind in kinds.values()):
            yield from _python_batches(path, _pieces(_objects(path)), kinds)
            return
    known = {name: kind.type for name, kind in kinds.items() if problem is None or not pa.types.is_null(kind.type)}
    parse = pa_json.ParseOptions(
        explicit_schema=pa.schema(list(known.items())), unexpected_field_behavior="infer" if problem else "ignore"
    )

    def read(block_size: int) -> Iterator[pa.RecordBatch]:
        options = pa_json.ReadOptions(use_threads=False, block_size=block_size)
        for batch in pa_json.open_json(path, read_options=options, parse_options=parse):
            require_columns(str(path), columns, batch.schema.names)
            yield batch.select(columns)

    yield from with_growing_blocks(path, read)
    if problem is not None:  # usually Arrow has already named the row
        raise DataError(f"{path} is not valid JSON: {problem}") from problem


def read_json(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Reads a JSON array, or one object per line, piece by piece."""
    head = next((text for chunk in read_chunks(path) if (text := chunk.removeprefix(b"\xef\xbb\xbf").lstrip())), b"")
    if head:  # otherwise one object per line, whatever the suffix
        yield from (_read_json_array if head.startswith(b"[") else _read_json_lines)(path, columns)
