"""Files of the known formats → Arrow record batches with the requested columns.

Text files are read as text: no type or missing value is inferred, so that a sentence "NA" or "007" is left unchanged.
Rows are counted from 0, without a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.data.files import COMPRESSIONS, format_of
from dist_eval.data.text_files import (
    LARGEST_ROW_BYTES,
    not_utf8,
    read_chunks,
    read_lines,
    require_content_of_name,
    require_flat_json,
    require_no_header,
    require_no_nul,
    require_no_swallowed_rows,
    require_whole_quotes,
    too_large,
)
from dist_eval.errors import DataError, one_line, translating_os_errors
from dist_eval.process.parsing import parse_json

ROWS_PER_BATCH = 2048
"""Maximum number of rows in a batch: for each row the tokenizer needs a hundred times the memory of its text."""

# Block sizes of the CSV and JSON readers: the usual one, and one for larger rows
_BLOCK_BYTES = (1 << 20, LARGEST_ROW_BYTES)

_ROW_IN_BLOCK = re.compile(r"(in row )(\d+)")
_INVALID_TEXT = re.compile(r"Invalid UTF8 sequence at string index (\d+)")
_ROW_LENGTH = re.compile(r"Expected \d+ columns, got \d+")
_LARGEST_ARRAY_BYTES = 64 << 20


class MissingColumnError(DataError):
    """A file lacks a column."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


def read_file(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Reads a file piece by piece."""
    with translating_os_errors(DataError, f"{path} cannot be read"):
        require_content_of_name(path)
    try:
        yield from translating_errors(str(path), _READERS[format_of(path)](path, list(columns)))
    except DataError as error:
        is_encoding = format_of(path) != ".parquet" and "utf8" in str(error).lower()
        raise (not_utf8(path) if is_encoding else None) or error from error.__cause__


def translating_errors(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields small batches of plain types, and raises what libraries refuse as a `DataError` that names the dataset."""
    row = 0
    try:
        for batch in map(plain_batch, batches):
            _require_valid(name, batch, row)
            row += batch.num_rows
            for start in range(0, batch.num_rows, ROWS_PER_BATCH):  # readers return as many rows as fit into a block
                yield batch.slice(start, ROWS_PER_BATCH)
    except pa.ArrowInvalid as error:
        advice = ". Put texts with a comma, quote or line break in quotes." if _ROW_LENGTH.search(str(error)) else ""
        raise DataError(f"{name} cannot be read: {one_line(error)}{advice}") from error
    except (OSError, UnicodeDecodeError, EOFError) as error:
        advice = ". Is it whole, and compressed as its name says?" if Path(name).suffix in COMPRESSIONS else ""
        raise DataError(f"{name} cannot be read: {one_line(error)}{advice}") from error


def _require_valid(name: str, batch: pa.RecordBatch, first_row: int) -> None:
    """Rejects columns with bytes that are not valid text, which files can hold."""
    for column, array in zip(batch.schema.names, batch.columns, strict=True):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            index = _INVALID_TEXT.search(str(error))
            if index is None or not pa.types.is_string(array.type):
                raise
            where = f"{name}, row {first_row + int(index[1])} (counted from 0)"
            raise DataError(f"{where}: column {column!r} holds text that is not UTF-8. Convert it.") from error


def require_columns(name: str, columns: Sequence[str], available: Sequence[str], hint: str = "") -> None:
    """Checks that a dataset has the requested columns, and each column once."""
    doubled = sorted({c for c in available if list(available).count(c) > 1})
    if doubled:
        raise DataError(f"{name} has the column {doubled[0]!r} more than once.")
    for column in columns:
        if column not in available:
            shown = ", ".join(available[:20]) + (", ..." if len(available) > 20 else "")
            close = [other for other in available if other.strip().casefold() == column.strip().casefold()]
            hint = f" Is {close[0]!r} meant?" if close else hint
            raise MissingColumnError(
                f"{name} has no column {column!r}. It has: {shown}.{hint} Name yours with --text-column, "
                "--prompt, --label-column, --slice-by or --group-column.",
                column,
            )


def _with_growing_blocks(path: Path, read: Any) -> Iterator[pa.RecordBatch]:
    """Reads with the usual block size, and after an error continues with the large one.

    A row that does not fit into a block causes one of several errors, depending on where the block ends; an error that
    is really in the file occurs with large blocks, too. A reader that failed may still be reading ahead, so it has to
    close the file itself: once its number were free, it would read from the next one.
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
                    raise too_large(path, "row") from error
                # the readers count from the start of the block
                row = _ROW_IN_BLOCK.search(str(error))
                text = _ROW_IN_BLOCK.sub(rf"\g<1>{int(row[2]) + seen}", str(error)) if row else str(error)
                raise pa.ArrowInvalid(text) from error


def _read_csv(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import csv

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
    for batch in _with_growing_blocks(path, read):
        if is_tsv:
            require_no_swallowed_rows(path, batch, row)
        batch = batch.select(columns)
        require_no_nul(path, batch, row)
        require_no_header(path, batch, row)
        row += batch.num_rows
        yield batch


def _hint_at_header(header: Sequence[str], columns: Sequence[str]) -> str:
    if len(header) == 1 and re.search(r"[,;\t|]", header[0]):
        return " Columns are separated by commas in .csv, and by tabs in .tsv."
    return "" if set(header) & set(columns) else " Does its first line name the columns?"


def _csv_header(path: Path, delimiter: str) -> list[str]:
    from csv import Error, reader

    try:
        header = next((line for line in reader(read_lines(path), delimiter=delimiter) if line), [])
    except Error as error:
        raise DataError(f"{path}: the header cannot be read ({error}). Is a quote left open?") from error
    if any("\0" in name for name in header):
        raise DataError(f"{path}: the header holds NUL bytes. Is the file damaged, or of another encoding than UTF-8?")
    return header


def _read_json_lines(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import json as pa_json

    # without a schema, texts that look like dates would become dates
    require_flat_json(path)
    first = _first_object(path)
    kinds: dict[str, pa.DataType] = {}
    for column in columns:
        value = first.get(column)
        if isinstance(value, str):
            kinds[column] = pa.string()
        elif isinstance(value, list) and value and isinstance(value[0], str):
            kinds[column] = pa.list_(pa.string())
    parse = pa_json.ParseOptions(explicit_schema=pa.schema(list(kinds.items())))

    def read(block_size: int) -> Iterator[pa.RecordBatch]:
        options = pa_json.ReadOptions(use_threads=False, block_size=block_size)
        for batch in pa_json.open_json(path, read_options=options, parse_options=parse):
            require_columns(str(path), columns, list(dict.fromkeys([*first, *batch.schema.names])))
            yield batch.select(columns)

    yield from _with_growing_blocks(path, read)


def _read_json(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    head = next((text for chunk in read_chunks(path) if (text := chunk.removeprefix(b"\xef\xbb\xbf").lstrip())), b"")
    if not head:
        return
    if not head.startswith(b"["):  # one object per line, whatever the suffix
        yield from _read_json_lines(path, columns)
        return
    with pa.input_stream(path, compression="detect") as stream:
        content = stream.read(_LARGEST_ARRAY_BYTES + 1)
    if len(content) > _LARGEST_ARRAY_BYTES:
        raise DataError(
            f"{path} holds one JSON array of over {_LARGEST_ARRAY_BYTES >> 20} MiB, which can only be read whole. "
            "Convert it to JSONL (one object a line), which is read piece by piece."
        )
    try:
        rows = parse_json(content.decode("utf-8-sig"), object_pairs_hook=_object)
    except ValueError as error:
        raise DataError(f"{path} is no valid JSON: {error}") from error
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {number}: should be an object with columns, not {row!r:.80}.")
    require_columns(str(path), columns, list(rows[0]) if rows else columns)
    arrays = []
    for column in columns:
        try:
            arrays.append(pa.array([row.get(column) for row in rows]))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise DataError(f"{path}: column {column!r} cannot be read ({one_line(error)}).") from error
    yield pa.RecordBatch.from_arrays(arrays, names=columns)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"an object has {next(n for n in names if names.count(n) > 1)!r} more than once")
    return dict(pairs)


def _first_object(path: Path) -> dict[str, Any]:
    line = next((line for line in read_lines(path) if line.strip()), "{}")
    try:
        first = parse_json(line)
    except ValueError:  # the actual reader reports what is wrong
        return {}
    return first if isinstance(first, dict) else {}


def _read_parquet(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        require_columns(str(path), columns, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=columns):
            yield batch.select(columns)


def class_names_of(path: Path, column: str) -> list[str] | None:
    """Returns the names of a ClassLabel column, which `datasets` writes into the metadata of a Parquet file."""
    from pyarrow import parquet

    if format_of(path) != ".parquet":
        return None
    try:
        metadata = parquet.read_schema(path).metadata or {}
        features = parse_json(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        feature = features[column]
        return list(feature.get("feature", feature)["names"])  # of a ClassLabel, or of a list of them
    except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # the actual reader reports what is wrong


_READERS = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
}


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch of the same values in columns of plain types; those without one stay as they are."""
    return pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], names=batch.schema.names)


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):
        return _plain(array.dictionary).take(array.indices)
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if isinstance(array, (pa.ListViewArray, pa.LargeListViewArray)):  # whose cast fails where one is null
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, _plain(array.flatten()), mask=array.is_null())
    kind = _plain_type(array.type)
    try:
        return array if kind == array.type else array.cast(kind)
    except pa.ArrowNotImplementedError:
        return array  # whoever needs it says what it holds


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    return kind
