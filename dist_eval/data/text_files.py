"""What can be wrong with text files: they are something else than their name says, not UTF-8, or damaged as CSV.

All of a file is read only where something seems to be wrong with it.
"""

from __future__ import annotations

import codecs
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.errors import DataError

_PIECE, _OVERLAP = 1 << 20, 1 << 16
_BEGINNINGS = (
    (rb"\x1f\x8b", ".gz", "is compressed by gzip: give it a name that ends with .gz."),
    (rb"BZh[1-9]1AY&SY", ".bz2", "is compressed by bzip2: give it a name that ends with .bz2."),
    (rb"\x28\xb5\x2f\xfd", ".zst", "is compressed by Zstandard: give it a name that ends with .zst."),
    (rb"\x04\x22\x4d\x18", ".lz4", "is compressed by LZ4: give it a name that ends with .lz4."),
    (rb"PAR1\x15", ".parquet", "is a Parquet file: give it a name that ends with .parquet."),
    (rb"PK\x03\x04", ".zip", "is a ZIP archive or an Excel file: unpack it, or save it as CSV."),
    (rb"version https://git-lfs", "", "is a pointer of Git LFS, not the data: get them with `git lfs pull`."),
    (rb"(?i)\s*<(!doctype|html)", "", "is an HTML page, as failed downloads leave it: download the data again."),
)
"""The first bytes of a file, the suffix that belongs to them, and what is said to any other."""


def require_content_of_name(path: Path) -> None:
    """Rejects a file whose first bytes say that it is of another kind than its name."""
    with path.open("rb") as file:
        start = file.read(64)
    for beginning, suffix, what in _BEGINNINGS:
        if re.match(beginning, start) and (not suffix or path.suffix.lower() != suffix):
            raise DataError(f"{path} {what}")


def not_utf8(path: Path) -> DataError | None:
    """Returns an error that names the first bytes of a text file that are not UTF-8; None if all are."""
    decoder, begin = codecs.getincrementaldecoder("utf-8")(), 0
    for piece in itertools.chain(_pieces(path), [b""]):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            where = begin - pending + error.start
            return DataError(f"{path} is not UTF-8 text ({error.reason} at byte {where}). Convert it to UTF-8.")
        begin += len(piece)
    return None


def require_doubled_quotes(path: Path, delimiter: str) -> None:
    r"""Rejects a CSV file in which quotes within texts are written as `\"`, which ends a text for readers of CSV."""
    ends = rb"\r\n" + re.escape(delimiter.encode())
    escaped = re.compile(rb'(?<![^%b])"(?:[^"]|"")*?\\"[^"%b]' % (ends, ends))
    line, end = 1, b""
    for piece in _pieces(path):
        piece = end + piece
        found = escaped.search(piece)
        if found:
            line += piece.count(b"\n", 0, found.end() - 1)
            raise DataError(
                f'{path}, line {line}: a quote within a text is written as \\" and would be read as its end. Double it '
                '(""), or convert the file to JSONL.'
            )
        line, end = line + piece[:-_OVERLAP].count(b"\n"), piece[-_OVERLAP:]


def require_no_nul(path: Path, batch: pa.RecordBatch, first_row: int) -> None:
    """Rejects NUL bytes, which indicate a file that was damaged by a crash or has another encoding."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        found = pc.match_substring(column, "\0")
        if pc.any(found).as_py():
            row = first_row + found.to_pylist().index(True)
            raise DataError(
                f"{path}, row {row} (counted from 0): column {name!r} holds a NUL byte. Is the file damaged, or of "
                "another encoding than UTF-8?"
            )


def require_no_swallowed_rows(path: Path, batch: pa.RecordBatch, first_row: int) -> None:
    """Rejects rows merged by a quote: in many TSV files quotes are plain characters, and may be unbalanced."""
    for column in batch.columns:
        suspicious = pc.and_(pc.match_substring(column, "\n"), pc.match_substring(column, "\t"))
        if pc.any(suspicious).as_py():
            row = first_row + suspicious.to_pylist().index(True)
            raise DataError(
                f"{path}, row {row} (counted from 0): a text in quotes spans several lines and columns. An odd quote "
                "seems to have swallowed rows. Double the quotes that are meant as characters, or convert to JSONL."
            )


def require_no_header(path: Path, batch: pa.RecordBatch, first_row: int) -> None:
    """Rejects a row that repeats the header, as in files that were put together."""
    equal = [pc.equal(column, name) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    repeated = functools.reduce(pc.and_, equal)
    if len(equal) > 1 and pc.any(repeated).as_py():
        row = first_row + repeated.to_pylist().index(True)
        raise DataError(
            f"{path}, row {row} (counted from 0): repeats the header, as if several files had been put together. "
            "Remove this row, or give the files themselves."
        )


def has_quote_and_backslash(batch: pa.RecordBatch) -> bool:
    """Whether a text has both, so that `require_doubled_quotes` should look at the file."""
    both = (pc.and_(pc.match_substring(c, "\\"), pc.match_substring(c, '"')) for c in batch.columns)
    return any(pc.any(found).as_py() for found in both)


def _pieces(path: Path) -> Iterator[bytes]:
    with pa.input_stream(path, compression="detect") as stream:
        while piece := stream.read(_PIECE):
            yield piece
