"""Files of the known formats → Arrow record batches with the requested columns.

CSV is read as text: no type or missing value is inferred, so that a sentence "NA" or "007" is left unchanged. A column
of JSON has the type of all its values (see `python_columns`).
Text files may be something else than their name says, not UTF-8, or damaged: readers of CSV and JSON pass over some of
it, or are ended by it, so that the files are looked at before. Rows are counted from 0, without a header.
"""

from __future__ import annotations

import codecs
import functools
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.data.files import COMPRESSIONS, format_of
from dist_eval.data.python_columns import MixedValuesError, PythonColumn
from dist_eval.errors import DataError, one_line, translating_os_errors
from dist_eval.process.parsing import DEEPEST, nesting, parse_json

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


def _read_json(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    head = next((text for chunk in read_chunks(path) if (text := chunk.removeprefix(b"\xef\xbb\xbf").lstrip())), b"")
    if head:  # else one object per line, whatever the suffix
        yield from (_read_json_array if head.startswith(b"[") else _read_json_lines)(path, columns)


def _read_json_array(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
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
    kinds = {name: PythonColumn() for name in columns}
    names = _look_at(path, _pieces((0, row) for row in rows), kinds)
    require_columns(str(path), columns, names or columns)
    yield from _python_batches(path, _pieces((0, row) for row in rows), kinds)


def _read_json_lines(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Reads the file twice: Arrow takes a column's type from its first rows, and dates for what looks like one."""
    from pyarrow import json as pa_json

    require_flat_json(path)
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

    yield from _with_growing_blocks(path, read)
    if problem is not None:  # usually Arrow has said before which row it is
        raise DataError(f"{path} is no valid JSON: {problem}") from problem


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the values in JSON lines, each with its size in characters; a value may go over several lines."""
    parts: list[str] = []
    depth = 0
    for line in read_lines(path):
        parts.append(line)
        if len(parts) > 1:
            depth = nesting(line.encode(), depth)[1]
            if depth > 0:
                continue
        try:
            yield from _values_in("".join(parts))
        except ValueError:
            depth = nesting(line.encode())[1]
            if len(parts) > 1 or depth <= 0:
                raise
        else:
            parts.clear()
    yield from _values_in("".join(parts))


def _values_in(text: str) -> list[tuple[int, Any]]:
    values, end = [], 0
    while rest := text[end:].lstrip():
        begin = len(text) - len(rest)
        value, end = _DECODER.raw_decode(text, begin)
        values.append((end - begin, value))
    return values


def _pieces(rows: Iterable[tuple[int, Any]]) -> Iterator[list[Any]]:
    piece, size = [], 0
    try:
        for length, row in rows:
            piece.append(row)
            size += length
            if len(piece) == ROWS_PER_BATCH or size >= _CHUNK_BYTES:
                yield piece
                piece, size = [], 0
    except ValueError:  # of the next row
        yield piece
        raise
    if piece:
        yield piece


def _look_at(path: Path, pieces: Iterable[list[Any]], kinds: Mapping[str, PythonColumn]) -> list[str]:
    """Finds out the kinds of columns; returns the names of all columns that rows have."""
    names: dict[str, None] = {}
    first = 0
    for piece in pieces:
        for number, row in enumerate(piece, start=first):
            if not isinstance(row, dict):
                raise DataError(f"{path}, row {number}: should be an object with columns, not {row!r:.80}.")
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


@contextmanager
def _naming_the_row(path: Path, column: str, first: int) -> Iterator[None]:
    try:
        yield
    except MixedValuesError as error:
        row = f"{path}, row {first + error.position} (counted from 0)"
        raise DataError(f"{row}: column {column!r} cannot be read ({error}).") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has {next(n for n in names if names.count(n) > 1)!r} more than once")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


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
        is_list = isinstance(feature, list)  # as older versions of `datasets` write a list of something
        item = feature[0] if is_list else feature.get("feature", feature)
        return list(item["names"])
    except (pa.ArrowInvalid, OSError, ValueError, LookupError, TypeError, AttributeError):
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
