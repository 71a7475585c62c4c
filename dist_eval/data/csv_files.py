"""CSV and TSV files → record batches of text.

No type or missing value is inferred, so the texts "NA" and "007" stay as they are. Arrow's reader silently drops some
quotes and merges some rows, so files are checked before and while they are read.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from csv import Error, reader
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dist_eval.data.files import format_of
from dist_eval.data.plain_columns import require_columns
from dist_eval.data.text_files import read_chunks, read_lines, require_row_fits, with_growing_blocks
from dist_eval.errors import DataError


def require_whole_quotes(path: Path, delimiter: str) -> None:
    r"""Rejects a CSV file in which a quoted field goes on after its end, or has none: `"12/3" g`, `"a \"good\" film"`.

    CSV readers drop such quotes, which were meant as characters, and take the rest of the file as one field.
    """
    end_of_field = re.escape(delimiter.encode()) + rb"\r\n"
    field = re.compile(rb'"(?<![^%b]")[^"]*(?:""[^"]*)*("[^"])?' % end_of_field)
    line, rest, unfinished = 1, b"", b""
    for chunk in itertools.chain(read_chunks(path), [b"\n"]):  # the last line may lack its end
        chunk = rest + chunk.removeprefix(b"\xef\xbb\xbf")
        begin, unfinished = len(chunk) - 1, b""  # the next chunk continues from the last character
        for match in field.finditer(chunk):
            if match[1] is None:
                begin = max(0, match.start() - 1)
                unfinished = chunk[begin:]
                break
            if match[1][1:] not in (delimiter.encode(), b"\r", b"\n"):
                line += chunk.count(b"\n", 0, match.start())
                start = match[0][:40].decode(errors="replace")
                raise DataError(
                    f"{path}, line {line}: a field begins with a quote and continues after the next one ({start!r}), "
                    'so both would be lost. Quote such fields and double the quotes within ("" for "), or convert the '
                    "file to JSONL."
                )
        line += chunk.count(b"\n", 0, begin)
        rest = unfinished or chunk[begin:].replace(b'"', b".")  # within a field, where a quote is a character
        require_row_fits(path, len(rest))
    if unfinished:
        line += unfinished.startswith(b"\n")
        raise DataError(
            f"{path}, line {line}: a field begins with a quote that is never closed, so it would contain the rest of "
            'the file. Close it, double quotes that are meant as characters ("" for "), or convert the file to JSONL.'
        )


def _require_no_nul(path: Path, batch: pa.RecordBatch, first_row: int) -> None:
    """Rejects NUL bytes, which indicate a file that was damaged by a crash or has another encoding."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        found = pc.match_substring(column, "\0")
        if pc.any(found).as_py():
            row = first_row + found.to_pylist().index(True)
            raise DataError(
                f"{path}, row {row} (counted from 0): column {name!r} contains a NUL byte. Is the file damaged or "
                "not UTF-8?"
            )


def _require_no_swallowed_rows(path: Path, batch: pa.RecordBatch, first_row: int) -> None:
    """Rejects rows merged by a quote: in many TSV files quotes are plain characters and may be unbalanced."""
    for column in batch.columns:
        suspicious = pc.and_(pc.match_substring(column, "\n"), pc.match_substring(column, "\t"))
        if pc.any(suspicious).as_py():
            row = first_row + suspicious.to_pylist().index(True)
            raise DataError(
                f"{path}, row {row} (counted from 0): a quoted text spans several lines and columns. An unbalanced "
                "quote may have merged rows. Double quotes that are meant as characters, or convert the file to JSONL."
            )


def _require_no_header(path: Path, batch: pa.RecordBatch, first_row: int) -> None:
    """Rejects a row that repeats the header, as in concatenated files."""
    equal = [pc.equal(column, name) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    repeated = functools.reduce(pc.and_, equal)
    if len(equal) > 1 and pc.any(repeated).as_py():
        row = first_row + repeated.to_pylist().index(True)
        raise DataError(
            f"{path}, row {row} (counted from 0): repeats the header. Were files concatenated? Remove the row, or "
            "give the separate files."
        )


def _hint_at_header(header: Sequence[str], columns: Sequence[str]) -> str:
    if len(header) == 1 and re.search(r"[,;\t|]", header[0]):
        return " Columns are separated by commas in .csv, and by tabs in .tsv."
    return "" if set(header) & set(columns) else " Does its first line name the columns?"


def _csv_header(path: Path, delimiter: str) -> list[str]:
    try:
        header = next((line for line in reader(read_lines(path), delimiter=delimiter) if line), [])
    except Error as error:
        raise DataError(f"{path}: the header cannot be read ({error}). Is a quote left open?") from error
    if any("\0" in name for name in header):
        raise DataError(f"{path}: the header contains NUL bytes. Is the file damaged or not UTF-8?")
    return header


def read_csv(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Reads a CSV or TSV file piece by piece."""
    is_tsv = format_of(path) == ".tsv"
    parse = csv.ParseOptions(delimiter="\t" if is_tsv else ",", newlines_in_values=True)
    header = _csv_header(path, parse.delimiter)
    if not header:
        return
    require_columns(str(path), columns, header, _hint_at_header(header, columns))
    require_whole_quotes(path, parse.delimiter)
    wanted = header if is_tsv else columns  # a quote may be unbalanced in any column
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(wanted, pa.string()), include_columns=wanted, strings_can_be_null=False
    )

    def read(block_size: int) -> Iterator[pa.RecordBatch]:
        options = csv.ReadOptions(block_size=block_size, use_threads=False)
        yield from csv.open_csv(path, read_options=options, parse_options=parse, convert_options=convert)

    row = 0
    for batch in with_growing_blocks(path, read):
        if is_tsv:
            _require_no_swallowed_rows(path, batch, row)
        batch = batch.select(columns)
        _require_no_nul(path, batch, row)
        _require_no_header(path, batch, row)
        row += batch.num_rows
        yield batch
