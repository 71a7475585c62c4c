"""Text files as chunks and lines: decompressed, with checks of the encoding and the size of rows."""

from __future__ import annotations

import codecs
import io
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from dist_eval.errors import DataError

LARGEST_ROW_BYTES = 16 << 20
"""Rows are read whole, and readers buffer 32 blocks of this size if one row needs it."""

_CHUNK_BYTES = 1 << 20

# Block sizes of Arrow's CSV and JSON readers: the usual one, and one for larger rows
_BLOCK_BYTES = (1 << 20, LARGEST_ROW_BYTES)

_ROW_IN_BLOCK = re.compile(r"(in row )(\d+)")


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


def with_growing_blocks(path: Path, read: Callable[[int], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Reads with the usual block size, and after an error continues with the large one.

    A row larger than a block causes one of several errors, depending on where the block ends. Real errors in the file
    recur with large blocks. A failed reader may still be reading ahead, so it must close the file itself: otherwise it
    could read from another file that reuses the descriptor.
    """
    given = 0
    for block_size in _BLOCK_BYTES:
        skip, seen = given, 0
        try:
            for batch in read(block_size):
                seen += batch.num_rows
                if seen <= skip:
                    continue
                fresh = batch.slice(max(0, skip - (seen - batch.num_rows)))
                given += fresh.num_rows
                yield fresh
            return
        except pa.ArrowInvalid as error:
            if block_size == _BLOCK_BYTES[-1]:
                if "block size" in str(error):
                    raise _too_large(path, "row") from error
                # readers count from the start of the block
                row = _ROW_IN_BLOCK.search(str(error))
                text = _ROW_IN_BLOCK.sub(rf"\g<1>{int(row[2]) + seen}", str(error)) if row else str(error)
                raise pa.ArrowInvalid(text) from error


def _too_large(path: Path, what: str) -> DataError:
    """Returns the error for a row or line that is too large."""
    return DataError(f"{path}: a {what} exceeds {LARGEST_ROW_BYTES >> 20} MiB. Is a line break or a quote missing?")
