"""What can be wrong with text files: they are something else than their name says, not UTF-8, or damaged.

The readers of CSV and JSON pass over some of it, or are ended by it, so that the files are looked at before.
"""

from __future__ import annotations

import codecs
import functools
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.errors import DataError
from dist_eval.process.parsing import DEEPEST, nesting

LARGEST_ROW_BYTES = 16 << 20
"""Rows are read as a whole, and readers hold 32 blocks of this size if one needs it."""

_CHUNK_BYTES = 1 << 20
# The first bytes of a file, the suffix that belongs to them, and what is said to any other
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
    for chunk in itertools.chain(read_chunks(path), [b""]):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            where = begin - pending + error.start
            return DataError(f"{path} is not UTF-8 text ({error.reason} at byte {where}). Convert it to UTF-8.")
        begin += len(chunk)
    return None


def read_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a text file."""
    with pa.input_stream(path, compression="detect") as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        try:
            while line := text.readline(LARGEST_ROW_BYTES):
                if len(line) == LARGEST_ROW_BYTES:
                    raise too_large(path, "line")
                yield line
        except UnicodeDecodeError as error:
            raise not_utf8(path) or error from error


def too_large(path: Path, what: str) -> DataError:
    """Returns the error for a row or line that is too large to be read."""
    return DataError(f"{path}: a {what} has over {LARGEST_ROW_BYTES >> 20} MiB. Are line breaks missing, or a quote?")


def require_whole_quotes(path: Path, delimiter: str) -> None:
    r"""Rejects a CSV file in which a quoted field goes on after its end: `"12/3" g`, `"a \"good\" film"`.

    Readers of CSV drop such quotes, which were meant as characters.
    """
    end_of_field = re.escape(delimiter.encode()) + rb"\r\n"
    field = re.compile(rb'"(?<![^%b]")[^"]*(?:""[^"]*)*("[^"])?' % end_of_field)
    line, rest = 1, b""
    for chunk in read_chunks(path):
        chunk = rest + chunk.removeprefix(b"\xef\xbb\xbf")
        begin, unfinished = len(chunk) - 1, b""  # the next chunk goes on from the last character
        for match in field.finditer(chunk):
            if match[1] is None:
                begin = max(0, match.start() - 1)
                unfinished = chunk[begin:]
                break
            if match[1][1:] not in (delimiter.encode(), b"\r", b"\n"):
                line += chunk.count(b"\n", 0, match.start())
                start = match[0][:40].decode(errors="replace")
                raise DataError(
                    f"{path}, line {line}: a field begins with a quote and goes on after the next one ({start!r}), so "
                    'that both would be lost. Put such fields in quotes and double the quotes within ("" for "), or '
                    "convert the file to JSONL."
                )
        line += chunk.count(b"\n", 0, begin)
        rest = unfinished or chunk[begin:].replace(b'"', b".")  # within a field, where a quote is a character
        if len(rest) > LARGEST_ROW_BYTES:
            raise too_large(path, "row")


def require_flat_json(path: Path) -> None:
    """Rejects JSON lines with a row that is too large, or nested so deeply that reading it would end the process."""
    depth, rest = 0, b""
    for chunk in itertools.chain(read_chunks(path), [b"\n"]):
        lines, _, rest = (rest + chunk).rpartition(b"\n")  # no text goes on after a line break
        deepest, depth = nesting(lines, depth)
        if deepest > DEEPEST:
            raise DataError(f"{path}: a row is nested over {DEEPEST} levels deep.")
        if len(rest) > LARGEST_ROW_BYTES:
            raise too_large(path, "row")


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


def read_chunks(path: Path) -> Iterator[bytes]:
    """Yields the content of a file, decompressed."""
    with pa.input_stream(path, compression="detect") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk
