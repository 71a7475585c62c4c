"""CSV and TSV files → record batches of text.

No type or missing value is inferred, so the texts "NA" and "007" stay as they are. Quotes that readers would drop, and
rows that a quote has merged, are errors.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from dist_eval.data.files import format_of
from dist_eval.data.plain_columns import ROWS_PER_BATCH, require_columns
from dist_eval.data.text_files import LARGEST_ROW_BYTES, read_lines, require_row_fits
from dist_eval.errors import DataError

_PIECE_CHARACTERS = 1 << 20

# reasons of errors of `csv`, and what they mean
_PROBLEMS = {
    "expected after": "and continues after the next one, so both would be lost",
    "unexpected end": "that is never closed, so it would contain the rest of the file",
}

csv.field_size_limit(LARGEST_ROW_BYTES)  # its own limit is 128 KiB


class _Rows:
    """The rows of a file, which may span several lines."""

    def __init__(self, path: Path, delimiter: str) -> None:
        self._path = path
        self.size = 0  # characters of the row
        self._begin, self._first_line = 1, ""  # number and text of its first line
        self._reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)

    def _lines(self) -> Iterator[str]:
        for number, line in enumerate(read_lines(self._path), start=1):
            if "\0" in line:
                raise DataError(f"{self._path}, line {number}: contains a NUL byte. Is the file damaged or not UTF-8?")
            if not self.size:
                self._begin, self._first_line = number, line
            self.size += len(line)
            require_row_fits(self._path, self.size)
            yield line

    def __iter__(self) -> Iterator[list[str]]:
        """Yields the rows that are not empty, beginning with the header."""
        try:
            for row in self._reader:
                if row:
                    yield row
                self.size = 0
        except csv.Error as error:
            where = f"{self._path}, line {self._begin}"
            problem = next((words for reason, words in _PROBLEMS.items() if reason in str(error)), None)
            if problem is None:
                raise DataError(f"{where}: {error}.") from error
            raise DataError(
                f"{where}: a field begins with a quote {problem} ({self._first_line[:40]!r}). Quote such fields and "
                'double the quotes within ("" for "), or convert the file to JSONL.'
            ) from error


def _hint_at_header(header: Sequence[str], columns: Sequence[str]) -> str:
    if len(header) == 1 and re.search(r"[,;\t|]", header[0]):
        return " Columns are separated by commas in .csv, and by tabs in .tsv."
    return "" if set(header) & set(columns) else " Does its first line name the columns?"


def _what_is_wrong(row: Sequence[str], header: Sequence[str], columns: Sequence[str], *, is_tsv: bool) -> str:
    """Says what is wrong with a row, given the names of its columns and of the requested ones; empty if nothing is."""
    if len(row) != len(header):
        shown = ("\t" if is_tsv else ",").join(row)[:80]
        return (
            f"expected {len(header)} columns, got {len(row)}: {shown}. Quote texts that contain a comma, quote or "
            "line break."
        )
    if is_tsv and any("\n" in cell and "\t" in cell for cell in row):  # in many of these, quotes are plain characters
        return (
            "a quoted text spans several lines and columns. An unbalanced quote may have merged rows. Double quotes "
            "that are meant as characters, or convert the file to JSONL."
        )
    if len(columns) > 1 and all(cell == name for name, cell in zip(header, row, strict=True) if name in columns):
        return "repeats the header. Were files concatenated? Remove the row, or give the separate files."
    return ""


def read_csv(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Reads a CSV or TSV file piece by piece."""
    is_tsv = format_of(path) == ".tsv"
    rows = _Rows(path, "\t" if is_tsv else ",")
    numbered = enumerate(rows, start=-1)
    _, header = next(numbered, (-1, list[str]()))
    if not header:
        return
    require_columns(str(path), columns, header, _hint_at_header(header, columns))
    places, size, piece = [header.index(name) for name in columns], 0, list[list[str]]()

    def batch() -> pa.RecordBatch:
        return pa.record_batch([pa.array(column, pa.string()) for column in zip(*piece, strict=True)], names=columns)

    for number, row in numbered:
        if wrong := _what_is_wrong(row, header, columns, is_tsv=is_tsv):
            raise DataError(f"{path}, row {number} (counted from 0): {wrong}")
        piece.append([row[place] for place in places])
        size += rows.size
        if len(piece) == ROWS_PER_BATCH or size >= _PIECE_CHARACTERS:
            yield batch()
            piece, size = [], 0
    if piece:
        yield batch()
