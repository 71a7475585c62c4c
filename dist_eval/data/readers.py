"""Files, Arrow folders and hub datasets → a stream of Arrow record batches with the requested columns.

Rows are counted from 0, without a header, as in predictions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dist_eval.data.files import (
    FORMATS,
    dataset_name,
    find_files,
    format_of,
    is_pattern,
    is_saved_by_datasets,
    names_of,
)
from dist_eval.data.formats import class_names_of, read_file, translating_errors
from dist_eval.data.in_memory import name_in_memory
from dist_eval.data.plain_columns import ROWS_PER_BATCH, MissingColumnError, require_columns
from dist_eval.errors import DataError, one_line, translating_os_errors
from dist_eval.process.files import chunks_of
from dist_eval.results.inputs import ShardSummary
from dist_eval.revisions import pinned

FILL_IN = "Fill it in, or remove the row."
"""Advice for a missing text or label."""


@dataclass
class Shard:
    """A file of a dataset."""

    path: Path  # the file
    rows: int = 0  # number of rows read so far


@dataclass(frozen=True)
class RowSource:
    """A stream of rows."""

    name: str  # name of the dataset, for messages
    # record batches with the requested columns, in their order; the last column has the labels
    batches: Iterator[pa.RecordBatch]
    class_names: list[str] | None = None  # names of integer labels, if the dataset declares them
    is_path: bool = False  # whether the name refers to local files, not to the hub or data in memory
    # its files in the order of their rows; empty for a dataset saved by `datasets` or on the hub
    shards: list[Shard] = field(default_factory=list)
    # the rows of the dataset in this stream, ascending, int64 of shape [rows]; None for all
    selected: np.ndarray | None = None

    @property
    def file(self) -> str:
        """Name of the current file for messages; the dataset's name if there are no files."""
        return next((str(shard.path) for shard in reversed(self.shards) if shard.rows), self.name)

    def row(self, position: int) -> int:
        """Returns the row of the dataset at a position in the stream."""
        return position if self.selected is None else int(self.selected[position])

    def only(self, rows: np.ndarray | None) -> RowSource:
        """Returns a stream of some rows, ascending; None for all. Other rows are skipped unchecked."""
        return self if rows is None else replace(self, batches=_taken(self.batches, rows), selected=rows)

    def numbered(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields the batches, each with the position of its first row."""
        first = 0
        for batch in self.batches:
            yield first, batch
            first += batch.num_rows

    def where(self, position: int) -> str:
        """Returns the file of the row at a position, and its number there, for messages."""
        return place_of(self.row(position), self.name, [(str(shard.path), shard.rows) for shard in self.shards])

    def require_present(self, array: pa.Array, what: str, first_row: int, rows: np.ndarray | None = None) -> None:
        """Rejects missing values in a chunk; `rows` has their positions if a row may have several."""
        if array.null_count:
            number = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            row = first_row + number if rows is None else int(rows[number])
            raise DataError(f"{self.where(row)}: the {what} is missing (null). {FILL_IN}")

    def summaries(self) -> list[ShardSummary] | None:
        """Returns the entries of results for files that were read; None unless there are several."""
        if not self.shards or not self.is_path or Path(self.name).is_file():
            return None
        paths = [Path(os.path.abspath(shard.path)) for shard in self.shards]
        folder = os.path.commonpath([path.parent for path in paths])
        return [
            ShardSummary(file=os.path.relpath(path, folder), rows=shard.rows, digest=_digest_of(path))
            for path, shard in zip(paths, self.shards, strict=True)
        ]


def _taken(batches: Iterator[pa.RecordBatch], rows: np.ndarray) -> Iterator[pa.RecordBatch]:
    first = taken = 0
    for batch in batches:
        end = taken + int(np.searchsorted(rows[taken:], first + batch.num_rows))
        if end > taken:
            yield batch.take(pa.array(rows[taken:end] - first))
        first, taken = first + batch.num_rows, end


def place_of(row: int, name: str, files: Sequence[tuple[str, int]]) -> str:
    """Returns the location of a row, for messages."""
    for file, rows in files:
        if row < rows:
            return f"{file}, row {row} (counted from 0)"
        row -= rows
    return f"{name}, row {row} (counted from 0)"


def open_rows(
    dataset: str | Sequence[str], columns: Sequence[str], *, subset: str | None = None, split: str | None = None
) -> RowSource:
    """Opens a dataset as a stream of record batches; errors of reading are raised during iteration.

    Args:
        dataset: CSV, TSV, JSON, JSONL or Parquet files (text files also compressed), folders of them, or patterns that
            they match; or a folder saved by `datasets.Dataset.save_to_disk`, or a hub name.
        columns: the columns to read, in this order, the one with the labels last.
        subset: configuration of a hub dataset.
        split: split of a hub dataset or of a saved folder that has several.
    """
    names = names_of(dataset)
    if len(names) == 1:
        path = Path(names[0])
        with translating_os_errors(DataError, f"{path} cannot be read"):
            if is_saved_by_datasets(path):
                return _open_saved(names[0], columns, split)
            if not (path.exists() or path.is_symlink() or _looks_like_file(names[0])):
                return _open_hub(names[0], columns, subset, split)
    in_memory = name_in_memory(names)
    name = in_memory or dataset_name(names)
    shards = [Shard(path) for path in find_files(names)]
    if subset or split:
        raise DataError(f"{name} consists of files, without subsets or splits: leave out --subset and --split.")
    class_names = class_names_of(shards[0].path, columns[-1])
    return RowSource(name, _read_shards(shards, columns), class_names, is_path=in_memory is None, shards=shards)


def _looks_like_file(dataset: str) -> bool:
    return (
        format_of(Path(dataset)) in FORMATS
        or is_pattern(dataset)
        or dataset.startswith((".", "/", "~"))
        or dataset.count("/") > 1
    )


def _open_saved(folder: str, columns: Sequence[str], split: str | None) -> RowSource:
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_from_disk(folder)
    except Exception as error:  # errors of file systems and of the library
        raise DataError(f"{folder} cannot be read: {one_line(error)}") from error
    if isinstance(loaded, datasets.DatasetDict):
        loaded = _choose_split(folder, loaded, split)
    elif split:
        raise DataError(f"{folder} is a single dataset without splits: leave out --split.")
    return _rows_of(folder, loaded, loaded.column_names, columns, is_path=True)


def _open_hub(name: str, columns: Sequence[str], subset: str | None, split: str | None) -> RowSource:
    """Opens a hub dataset: streamed, or from the local cache if the hub is offline."""
    import datasets

    datasets.disable_progress_bars()
    is_streamed = not datasets.config.HF_HUB_OFFLINE
    try:
        loaded = datasets.load_dataset(
            name, subset, split=split, revision=pinned("dataset", name), streaming=is_streamed, trust_remote_code=False
        )
        if isinstance(loaded, (datasets.DatasetDict, datasets.IterableDatasetDict)):
            loaded = _choose_split(name, loaded, split)
        available = loaded.column_names or list(next(iter(loaded.take(1)), {}))
    except DataError:
        raise
    except Exception as error:  # errors of the hub's client, of file systems and of the library
        raise DataError(
            f"{name} is neither a file, a folder nor a hub dataset, or it cannot be read: {one_line(error)}"
        ) from error
    return _rows_of(name, loaded, available, columns, is_path=False)


def _choose_split(name: str, splits: Any, split: str | None) -> Any:
    if split not in splits:
        asked = f"has no split {split!r}" if split else "has several splits"
        raise DataError(f"{name} {asked}: choose one of {', '.join(splits)} with --split.")
    return splits[split]


def _rows_of(name: str, loaded: Any, available: Sequence[str], columns: Sequence[str], *, is_path: bool) -> RowSource:
    require_columns(name, columns, available)
    feature = (loaded.features or {}).get(columns[-1])
    names = getattr(getattr(feature, "feature", feature), "names", None)  # for a ClassLabel or a list of ClassLabels
    arrow = loaded.select_columns(list(columns)).with_format("arrow")
    batches = (
        batch for table in arrow.iter(batch_size=ROWS_PER_BATCH) for batch in table.select(list(columns)).to_batches()
    )
    return RowSource(name, _translating_all(name, batches), names, is_path=is_path)


def _translating_all(name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from translating_errors(name, batches)
    except DataError:
        raise
    except Exception as error:  # errors of the hub's client during streaming
        raise DataError(f"{name} cannot be read: {one_line(error)}") from error


def _read_shards(shards: Sequence[Shard], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    first = shards[0].path
    class_names = class_names_of(first, columns[-1])
    kinds: dict[str, tuple[str, Path]] = {}
    for shard in shards:
        if shard.path != first and class_names_of(shard.path, columns[-1]) != class_names:
            raise DataError(
                f"{shard.path} and {first} declare different class names in column {columns[-1]!r}, so their "
                "numbers mean different classes. Write both with the same names."
            )
        try:
            for batch in read_file(shard.path, columns):
                for field in batch.schema:
                    kind = _kind(field.type)
                    known, where = kinds.setdefault(field.name, (kind, shard.path)) if kind else ("", first)
                    if known != kind:
                        raise DataError(
                            f"{shard.path} holds {kind} in column {field.name!r}, but {where} holds {known}: write the "
                            "column with one type in all files."
                        )
                shard.rows += batch.num_rows
                yield batch
        except MissingColumnError as error:
            if shard.path == first:
                raise
            raise DataError(
                f"{shard.path} has no column {error.column!r}, but {first} has. All files need the same columns, and "
                "each CSV file needs a header."
            ) from error


def _kind(data_type: pa.DataType) -> str:
    """Describes the type of a column; empty for null, or lists of null."""
    if pa.types.is_null(data_type):
        return ""
    if pa.types.is_string(data_type):
        return "text"
    if pa.types.is_integer(data_type) or pa.types.is_floating(data_type) or pa.types.is_decimal(data_type):
        return "numbers"
    if pa.types.is_list(data_type):
        of_what = _kind(data_type.value_type)
        return f"lists of {of_what}" if of_what else ""
    return str(data_type)


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    for chunk in chunks_of(path):
        digest.update(chunk)
    return digest.hexdigest()
