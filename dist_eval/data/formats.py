"""A file of any known format → Arrow record batches with the requested columns.

Rows are counted from 0, without a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from dist_eval.data.csv_files import read_csv
from dist_eval.data.files import COMPRESSIONS, format_of
from dist_eval.data.json_files import read_json
from dist_eval.data.plain_columns import ROWS_PER_BATCH, plain_batch, require_columns
from dist_eval.errors import DataError, one_line, translating_os_errors
from dist_eval.process.parsing import parse_json

# The first bytes of a file, the suffix of that format, and the message for any other suffix
_BEGINNINGS = (
    (rb"\x1f\x8b", ".gz", "is compressed by gzip: give it a name that ends with .gz."),
    (rb"BZh[1-9]1AY&SY", ".bz2", "is compressed by bzip2: give it a name that ends with .bz2."),
    (rb"\x28\xb5\x2f\xfd", ".zst", "is compressed by Zstandard: give it a name that ends with .zst."),
    (rb"\x04\x22\x4d\x18", ".lz4", "is compressed by LZ4: give it a name that ends with .lz4."),
    (rb"PAR1\x15", ".parquet", "is a Parquet file: give it a name that ends with .parquet."),
    (rb"PK\x03\x04", ".zip", "is a ZIP archive or an Excel file: unpack it, or save it as CSV."),
    (rb"version https://git-lfs", "", "is a Git LFS pointer, not the data: get the data with `git lfs pull`."),
    (rb"(?i)\s*<(!doctype|html)", "", "is an HTML page, perhaps from a failed download: download the data again."),
)

_INVALID_TEXT = re.compile(r"Invalid UTF8 sequence at string index (\d+)")


def _require_content_of_name(path: Path) -> None:
    """Rejects a file whose first bytes contradict its name."""
    with path.open("rb") as file:
        start = file.read(64)
    for beginning, suffix, what in _BEGINNINGS:
        if re.match(beginning, start) and (not suffix or path.suffix.lower() != suffix):
            raise DataError(f"{path} {what}")


def _require_valid(name: str, batch: pa.RecordBatch, first_row: int) -> None:
    """Rejects text columns with invalid UTF-8."""
    for column, array in zip(batch.schema.names, batch.columns, strict=True):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            index = _INVALID_TEXT.search(str(error))
            if index is None or not pa.types.is_string(array.type):
                raise
            where = f"{name}, row {first_row + int(index[1])} (counted from 0)"
            raise DataError(f"{where}: column {column!r} contains text that is not UTF-8. Convert it.") from error


def translating_errors(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields small batches of plain types; turns errors of libraries into a `DataError` that names the dataset."""
    row = 0
    try:
        for batch in map(plain_batch, batches):
            _require_valid(name, batch, row)
            row += batch.num_rows
            for start in range(0, batch.num_rows, ROWS_PER_BATCH):  # readers return blocks with any number of rows
                yield batch.slice(start, ROWS_PER_BATCH)
    except pa.ArrowInvalid as error:
        raise DataError(f"{name} cannot be read: {one_line(error)}") from error
    except (OSError, UnicodeDecodeError, EOFError) as error:
        advice = ". Is it complete, and compressed as its name says?" if Path(name).suffix in COMPRESSIONS else ""
        raise DataError(f"{name} cannot be read: {one_line(error)}{advice}") from error


def _read_parquet(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with parquet.ParquetFile(path) as file:
        require_columns(str(path), columns, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=ROWS_PER_BATCH, columns=columns):
            yield batch.select(columns)


_READERS = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".jsonl": read_json,
    ".ndjson": read_json,
    ".json": read_json,
    ".parquet": _read_parquet,
}


def read_file(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Reads a file piece by piece."""
    with translating_os_errors(DataError, f"{path} cannot be read"):
        _require_content_of_name(path)
    yield from translating_errors(str(path), _READERS[format_of(path)](path, list(columns)))


def class_names_of(path: Path, column: str) -> list[str] | None:
    """Returns the names of a ClassLabel column, which `datasets` writes into the metadata of a Parquet file."""
    if format_of(path) != ".parquet":
        return None
    try:
        metadata = parquet.read_schema(path).metadata or {}
        features = parse_json(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        feature = features[column]
        is_list = isinstance(feature, list)  # older versions of `datasets` write lists this way
        item = feature[0] if is_list else feature.get("feature", feature)
        return list(item["names"])
    except (pa.ArrowInvalid, OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # the actual reader reports what is wrong
