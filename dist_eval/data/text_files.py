"""Text files as chunks and lines: decompressed, with checks of the encoding and the size of rows."""

from __future__ import annotations

import codecs
import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from dist_eval.errors import DataError

LARGEST_ROW_BYTES = 16 << 20
"""Largest row of a file, which is read whole."""

_CHUNK_BYTES = 1 << 20


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yields the content of a file, decompressed."""
    with pa.input_stream(path, compression="detect") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file."""
    with pa.input_stream(path, compression="detect") as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        try:
            while line := text.readline(LARGEST_ROW_BYTES):
                if len(line) == LARGEST_ROW_BYTES:
                    raise _too_large(path, "line")
                yield line
        except UnicodeDecodeError as error:
            raise not_utf8(path) or error from error


def not_utf8(path: Path) -> DataError | None:
    """Returns an error that names the first bytes of a text file that are not UTF-8; None if all are."""
    decoder, begin = codecs.getincrementaldecoder("utf-8")(), 0
    for chunk in itertools.chain(read_chunks(path), [b""]):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            where = begin - pending + error.start
            return DataError(f"{path} is not UTF-8 text ({error.reason} at byte {where}). Convert it to UTF-8.")
        begin += len(chunk)
    return None


def require_row_fits(path: Path, size: int) -> None:
    """Rejects a row with more than `LARGEST_ROW_BYTES`."""
    if size > LARGEST_ROW_BYTES:
        raise _too_large(path, "row")


def _too_large(path: Path, what: str) -> DataError:
    """Returns the error for a row or line that is too large."""
    return DataError(f"{path}: a {what} exceeds {LARGEST_ROW_BYTES >> 20} MiB. Is a line break or a quote missing?")
