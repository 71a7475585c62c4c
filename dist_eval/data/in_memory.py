"""Data in memory → a Parquet file, which is then read and checked like any other (see `formats`).

No data frame library is imported: tables are recognized by their Arrow interface, or by the attributes of pandas and
`datasets`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dist_eval.data.files import format_of, names_of
from dist_eval.data.plain_columns import ROWS_PER_BATCH, plain_batch, require_columns
from dist_eval.data.python_columns import REFUSED, MixedValuesError, PythonColumn
from dist_eval.errors import DataError, RunError, one_line, translating_os_errors
from dist_eval.tables import format_count

_NAME = "data in memory"
_MARK = b"dist_eval"  # in the file's metadata: the file is temporary, so results do not show its name
_COLUMNS_NAMED, _LONGEST_COLUMN = 6, 40


def is_in_memory(dataset: Any) -> bool:
    """Returns whether a dataset is given as rows (a table or a list of mappings), not by name."""
    if isinstance(dataset, list):
        return any(isinstance(row, Mapping) for row in dataset)
    return hasattr(dataset, "__arrow_c_stream__") or _is_of_pandas(dataset) or _is_of_datasets(dataset)


def write_parquet(dataset: Any, path: Path) -> None:
    """Writes data to a file, whose stem is the dataset's name in messages.

    `dataset` is a table of pandas, polars, pyarrow or another library with Arrow's interface, a `datasets.Dataset`, or
    a list of mappings.
    """
    from pyarrow import parquet

    try:
        reader = _open(dataset, path.stem)
        with (
            translating_os_errors(RunError, f"{path} cannot be written"),
            parquet.ParquetWriter(path, _plain_schema(reader.schema)) as writer,
        ):
            for batch in map(plain_batch, reader):
                writer.write_batch(batch)
    except REFUSED as error:
        raise DataError(f"{path.stem} cannot be read as a table: {one_line(error)}") from error


def name_in_memory(dataset: str | Sequence[str]) -> str | None:
    """Returns the name in results of data that was in memory; None for any other dataset."""
    from pyarrow import parquet

    [name, *others] = names_of(dataset) or [""]
    if others or format_of(Path(name)) != ".parquet":
        return None
    try:
        file = parquet.read_metadata(name)
    except (pa.ArrowException, OSError):
        return None  # the reader reports what is wrong
    if _MARK not in (file.metadata or {}):
        return None
    columns = file.schema.to_arrow_schema().names
    columns = [name if len(name) <= _LONGEST_COLUMN else f"{name[:_LONGEST_COLUMN]}..." for name in columns]
    more = ["..."] if len(columns) > _COLUMNS_NAMED else []
    named = ", ".join([*columns[:_COLUMNS_NAMED], *more])
    return f"{_NAME} ({format_count(file.num_rows, 'row')} with the columns {named})"


def was_in_memory(name: str) -> bool:
    """Returns whether a name in results comes from `name_in_memory`."""
    return name.startswith(f"{_NAME} (")


def _is_of_pandas(dataset: Any) -> bool:
    return hasattr(dataset, "iloc") and hasattr(dataset, "columns")


def _is_of_datasets(dataset: Any) -> bool:
    return hasattr(dataset, "features") and hasattr(dataset, "with_format") and hasattr(dataset, "num_rows")


def _open(dataset: Any, name: str) -> pa.RecordBatchReader:
    if _is_of_datasets(dataset):  # in pieces: it may not fit into memory
        schema = dataset.features.arrow_schema  # with the names of classes
        tables = dataset.with_format("arrow").iter(batch_size=ROWS_PER_BATCH)
        batches = (batch for table in tables for batch in table.cast(schema).to_batches())
        return pa.RecordBatchReader.from_batches(schema, batches)
    if isinstance(dataset, list):
        columns = _columns_of_rows(dataset, name)
    elif _is_of_pandas(dataset):
        require_columns(name, [], list(map(str, dataset.columns)))  # rejects duplicates
        columns = {column: dataset[column] for column in dataset.columns}
    else:
        return pa.table(dataset).to_reader()
    return pa.table({str(column): _array(values, column, name) for column, values in columns.items()}).to_reader()


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the schema of plain batches, because Parquet does not support all types of polars."""
    columns = [column.chunk(0) for column in schema.empty_table().columns]
    plain = plain_batch(pa.RecordBatch.from_arrays(columns, schema=schema)).schema
    return plain.with_metadata({**(schema.metadata or {}), _MARK: _NAME.encode()})


def _columns_of_rows(rows: list[Any], name: str) -> dict[Any, Any]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{name}, row {number} (counted from 0): must be a mapping with columns, not {row!r:.80}.")
    columns = dict.fromkeys(column for row in rows for column in row)
    return {column: [row.get(column) for row in rows] for column in columns}


def _array(values: Any, column: Any, name: str) -> pa.Array:
    if hasattr(values, "dtype") and values.dtype != object:
        return pa.array(values, from_pandas=True)
    known, kind = list(values), PythonColumn(nan_is_null=True)
    try:
        kind.add(known)
        return kind.array(known)
    except MixedValuesError as error:
        raise DataError(
            f"{name}, row {error.position} (counted from 0): column {column!r} cannot be read ({error})."
        ) from error
