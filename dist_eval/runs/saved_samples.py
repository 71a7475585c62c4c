"""`predictions.parquet`, the table of a run's samples: predictions or generated texts.

The fields of `SavedPredictions` are its columns, in the same order; writing, reading and cutting into chunks follow
from them. The columns of `SavedTexts` are its `TYPES` and the metrics. Logits are saved only if probabilities would
rank the examples differently, so everything computed from a saved table is bit-identical to what the run computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dist_eval.metrics.predictions import PredictionsLike, rows_of_a_chunk
from dist_eval.metrics.ranking import probabilities_rank_alike
from dist_eval.petals.base_model.problem_types import REGRESSION, SINGLE_LABEL, Problem, problem_of
from dist_eval.process.files import replaced_atomically

_ROWS_AT_ONCE = 1 << 16
_CELLS_READ_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class SavedPredictions:
    """Columns of predictions.

    A regression with a single output has numbers in the table, instead of lists of one.
    """

    index: np.ndarray  # position in the dataset, int64 of shape [n]
    label: np.ndarray  # true labels, as in `dist_eval.Predictions`
    prediction: np.ndarray  # predicted labels, of the same shape and dtype
    loss: np.ndarray  # float64 of shape [n]
    probabilities: np.ndarray  # float64 of shape [n, num_labels]; for a regression of shape [n, 0], and not saved
    group: np.ndarray | None = None  # number of the group of each example, int64 of shape [n]; None without groups
    # float32 of shape [n, num_labels]; None where probabilities rank the examples as logits do (`ranking_scores`)
    logits: np.ndarray | None = None

    @classmethod
    def from_predictions(
        cls, predictions: PredictionsLike, group: np.ndarray | None = None, logits: np.ndarray | None = None
    ) -> SavedPredictions:
        """Copies predictions, with their groups and logits if they should be saved."""
        none = np.empty((len(predictions), 0))
        probabilities = none if predictions.problem is REGRESSION else predictions.probabilities
        of_model = predictions.label, predictions.prediction, predictions.loss, probabilities
        return cls(predictions.index, *of_model, group, logits)

    @classmethod
    def from_table(cls, table: pa.Table | pa.RecordBatch) -> SavedPredictions:
        """Takes columns that were read from a file."""
        known = {field.name for field in fields(cls)}  # a newer version may have written more
        columns = {name: _to_numpy(table.column(name)) for name in table.schema.names if name in known}
        if "label" in columns and problem_of(columns["label"].dtype) is REGRESSION:
            columns["probabilities"] = np.empty((len(columns["label"]), 0))
            for name in ("label", "prediction"):
                columns[name] = columns[name].reshape(len(columns[name]), -1)
        _require_columns(cls, columns)
        return cls(**columns)

    def columns(self) -> dict[str, np.ndarray]:
        """Returns the columns by name, without those that are None."""
        every = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in every.items() if column is not None}

    def table(self) -> dict[str, np.ndarray]:
        """Returns the columns as they are written."""
        columns = self.columns()
        if self.problem is REGRESSION:
            del columns["probabilities"]
            if self.num_labels == 1:
                columns |= {name: columns[name][:, 0] for name in ("label", "prediction")}
        return columns

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_labels(self) -> int:
        return self.label.shape[1] if self.problem is REGRESSION else self.probabilities.shape[1]

    @property
    def problem(self) -> Problem:
        return problem_of(self.label.dtype)

    def probabilities_of(self, classes: Iterable[int]) -> Iterator[np.ndarray]:
        """Yields columns of `probabilities`, float64 of shape [n] each."""
        for number in classes:
            yield self.probabilities[:, number]

    def at(self, positions: np.ndarray | slice) -> SavedPredictions:
        return SavedPredictions(**{name: column[positions] for name, column in self.columns().items()})

    def with_classes(self, order: Sequence[int]) -> SavedPredictions:
        """Renumbers the classes, labels or outputs: the current number `order[i]` becomes number i."""
        if self.problem is SINGLE_LABEL:
            numbers = np.argsort(order)
            changes = {"label": numbers[self.label], "prediction": numbers[self.prediction]}
        else:
            changes = {"label": self.label[:, order], "prediction": self.prediction[:, order]}
        if self.problem is not REGRESSION:
            changes["probabilities"] = self.probabilities[:, order]
        if self.logits is not None:
            changes["logits"] = self.logits[:, order]
        return replace(self, **changes)

    def chunks(self) -> Iterator[SavedPredictions]:
        """Cuts the predictions into chunks of bounded size."""
        step = rows_of_a_chunk(self.num_labels)
        for start in range(0, len(self), step):
            yield self.at(slice(start, start + step))


@dataclass(frozen=True)
class SavedTexts:
    """Columns of generated texts."""

    index: np.ndarray  # row in the dataset, int64 of shape [n]
    references: list[list[str]]  # the right texts of each row
    text: list[str]  # the texts
    values: dict[str, np.ndarray]  # by metric, which names the column: bool or float64 of shape [n]
    answer: list[str | None] | None = None  # what --answer-pattern found in each text; None without a pattern
    group: np.ndarray | None = None  # number of the group of each, int64 of shape [n]; None without groups

    TYPES: ClassVar[dict[str, pa.DataType]] = {
        "index": pa.int64(),
        "references": pa.list_(pa.string()),
        "text": pa.string(),
        "answer": pa.string(),
        "group": pa.int64(),
    }
    """Types by column; metrics must not have these names."""

    def __len__(self) -> int:
        return len(self.text)

    @classmethod
    def from_table(cls, table: pa.Table) -> SavedTexts:
        own: dict[str, Any] = {}
        values: dict[str, np.ndarray] = {}
        for name, column in zip(table.schema.names, table.columns, strict=True):
            if name not in cls.TYPES:
                values[name] = _to_numpy(column)
            else:
                own[name] = _to_numpy(column) if cls.TYPES[name] == pa.int64() else column.to_pylist()
        _require_columns(cls, {**own, "values": values})
        return cls(**own, values=values)

    def at(self, places: np.ndarray) -> SavedTexts:
        own: dict[str, Any] = {
            name: column[places] if isinstance(column, np.ndarray) else [column[place] for place in places.tolist()]
            for name, column in self._own_columns().items()
        }
        return SavedTexts(**own, values={name: column[places] for name, column in self.values.items()})

    def chunks(self) -> Iterator[SavedTexts]:
        """Cuts the texts into chunks of bounded size."""
        for start in range(0, len(self), _ROWS_AT_ONCE):
            yield self.at(np.arange(start, min(start + _ROWS_AT_ONCE, len(self))))

    def numbers(self, name: str) -> list[int] | list[float]:
        """Returns the values of a metric; 0 or 1 for a metric that is true or false."""
        column = self.values[name]
        return (column.astype(np.int64) if column.dtype == np.bool_ else column).tolist()

    def table(self) -> dict[str, pa.Array]:
        """Returns the columns as they are written, without those that are None."""
        own = {name: pa.array(column, self.TYPES[name]) for name, column in self._own_columns().items()}
        last: dict[str, Any] = {name: own.pop(name) for name in ("answer", "group") if name in own}
        return {**own, **{name: pa.array(column) for name, column in self.values.items()}, **last}

    def _own_columns(self) -> dict[str, Any]:
        every = {name: getattr(self, name) for name in self.TYPES}
        return {name: column for name, column in every.items() if column is not None}


def _require_columns(of: type[SavedPredictions | SavedTexts], columns: Mapping[str, Any]) -> None:
    for field in fields(of):
        if field.default is MISSING and field.name not in columns:
            raise ValueError(f"it lacks the column {field.name!r}, so another version wrote it")


Samples: TypeAlias = PredictionsLike | SavedTexts


def write_samples(path: Path, samples: Samples, groups: np.ndarray | None = None) -> None:
    """Writes a row for each prediction or text, with its group if there is one. Equal input gives equal bytes."""
    options: dict[str, Any] = {}
    keeps_logits = False
    if not isinstance(samples, SavedTexts):
        keeps_logits = samples.problem is not REGRESSION and not probabilities_rank_alike(samples)
        # a dictionary saves space only for classes
        dictionary = ["label", "prediction"] if samples.problem is SINGLE_LABEL else False
        options = {"use_dictionary": dictionary, "column_encoding": {"index": "DELTA_BINARY_PACKED"}}

    def table_of(part: Samples, group: np.ndarray | None) -> Mapping[str, Any]:
        if isinstance(part, SavedTexts):
            return replace(part, group=group).table()
        logits = getattr(part, "logits", None) if keeps_logits else None
        return SavedPredictions.from_predictions(part, group, logits).table()

    def tables() -> Iterator[Mapping[str, Any]]:
        start = 0
        for chunk in samples.chunks():  # probabilities take more memory than the predictions themselves
            yield table_of(chunk, None if groups is None else groups[start : start + len(chunk)])
            start += len(chunk)

    nothing = table_of(samples.at(np.empty(0, dtype=np.int64)), None if groups is None else groups[:0])
    schema = pa.schema([(name, _to_arrow(values).type) for name, values in nothing.items()])
    with replaced_atomically(path) as file, parquet.ParquetWriter(file, schema, **options) as writer:
        for table in tables():
            writer.write_batch(pa.record_batch([_to_arrow(table[name]) for name in schema.names], schema=schema))


def read_predictions(path: Path) -> SavedPredictions:
    """Reads the predictions that `write_samples` wrote; raises OSError, or ValueError if a column is missing."""
    return SavedPredictions.from_table(parquet.read_table(path))


def read_chunks(path: Path) -> Iterator[SavedPredictions]:
    """Reads the predictions in chunks of bounded size."""
    with parquet.ParquetFile(path) as file:
        widest = max(getattr(field.type, "list_size", 1) for field in file.schema_arrow)
        yield from map(SavedPredictions.from_table, file.iter_batches(max(1, _CELLS_READ_AT_ONCE // widest)))


def read_texts(path: Path) -> SavedTexts:
    """Reads the texts that `write_samples` wrote; raises OSError, or ValueError if a column is missing."""
    return SavedTexts.from_table(parquet.read_table(path))


def _to_arrow(values: np.ndarray | pa.Array) -> pa.Array:
    if not isinstance(values, np.ndarray):
        return values
    flat = pa.array(values.ravel())
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _to_numpy(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_fixed_size_list(array.type):
        return array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), array.type.list_size)
    return array.to_numpy(zero_copy_only=False)
