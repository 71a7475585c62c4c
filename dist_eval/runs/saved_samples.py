"""`predictions.parquet`, the table of a run's samples: predictions or generated texts.

Logits are saved only if probabilities would rank the examples differently, so everything computed from a saved table is
bit-identical to what the run computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.ranking import probabilities_rank_alike
from dist_eval.petals.base_model.problem_types import REGRESSION, SINGLE_LABEL, problem_of
from dist_eval.process.files import replaced_atomically

# of predictions, in the order of the table
_COLUMNS = ("index", "label", "prediction", "loss", "probabilities", "group", "logits")
_OPTIONAL = ("group", "logits")

_ROWS_AT_ONCE = 1 << 16
_CELLS_READ_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Texts:
    """Generated texts, as columns."""

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
    def from_table(cls, table: pa.Table) -> Texts:
        own: dict[str, Any] = {}
        values: dict[str, np.ndarray] = {}
        for name, column in zip(table.schema.names, table.columns, strict=True):
            if name not in cls.TYPES:
                values[name] = _to_numpy(column)
            else:
                own[name] = _to_numpy(column) if cls.TYPES[name] == pa.int64() else column.to_pylist()
        required = [field.name for field in fields(cls) if field.default is MISSING and field.name != "values"]
        _require_columns(required, own)
        return cls(**own, values=values)

    def in_groups(self, group: np.ndarray | None) -> Texts:
        """Returns the same texts with another `group`."""
        return replace(self, group=group)

    def at(self, places: np.ndarray) -> Texts:
        own: dict[str, Any] = {
            name: column[places] if isinstance(column, np.ndarray) else [column[place] for place in places.tolist()]
            for name, column in self._own_columns().items()
        }
        return Texts(**own, values={name: column[places] for name, column in self.values.items()})

    def chunks(self) -> Iterator[Texts]:
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


Samples: TypeAlias = Predictions | Texts


def write_samples(path: Path, samples: Samples) -> None:
    """Writes a row for each prediction or text, with its group if there is one. Equal input gives equal bytes."""
    options: dict[str, Any] = {}
    keeps_logits = False
    if isinstance(samples, Predictions):
        keeps_logits = samples.problem is not REGRESSION and not probabilities_rank_alike(samples)
        # a dictionary saves space only for classes
        dictionary = ["label", "prediction"] if samples.problem is SINGLE_LABEL else False
        options = {"use_dictionary": dictionary, "column_encoding": {"index": "DELTA_BINARY_PACKED"}}

    def table_of(part: Samples) -> Mapping[str, Any]:
        return part.table() if isinstance(part, Texts) else _table_of(part, keeps_logits)

    nothing = table_of(samples.at(np.empty(0, dtype=np.int64)))
    schema = pa.schema([(name, _to_arrow(values).type) for name, values in nothing.items()])
    with replaced_atomically(path) as file, parquet.ParquetWriter(file, schema, **options) as writer:
        for chunk in samples.chunks():  # probabilities take more memory than the predictions themselves
            table = table_of(chunk)
            writer.write_batch(pa.record_batch([_to_arrow(table[name]) for name in schema.names], schema=schema))


def _table_of(predictions: Predictions, keeps_logits: bool) -> dict[str, np.ndarray]:
    """Returns the columns as they are written; a regression with a single output has numbers, not lists of one."""
    is_regression = predictions.problem is REGRESSION
    left_out = ["probabilities"] * is_regression + ["logits"] * (not keeps_logits)
    columns = {name: getattr(predictions, name) for name in _COLUMNS if name not in left_out}
    if is_regression and predictions.num_labels == 1:
        columns |= {name: columns[name][:, 0] for name in ("label", "prediction")}
    return {name: column for name, column in columns.items() if column is not None}


def _predictions_of(table: pa.Table | pa.RecordBatch) -> Predictions:
    """Takes columns that were read from a file."""
    columns: dict[str, Any] = {name: _to_numpy(table.column(name)) for name in table.schema.names if name in _COLUMNS}
    is_regression = "label" in columns and problem_of(columns["label"].dtype) is REGRESSION
    left_out = (*_OPTIONAL, "probabilities") if is_regression else _OPTIONAL
    _require_columns((name for name in _COLUMNS if name not in left_out), columns)
    if is_regression:
        columns |= {name: columns[name].reshape(len(columns[name]), -1) for name in ("label", "prediction")}
    saved = {f"saved_{name}": columns.pop(name) for name in ("prediction", "probabilities") if name in columns}
    return Predictions(**{"logits": None, **columns, **saved})


def _require_columns(names: Iterable[str], columns: Mapping[str, Any]) -> None:
    for name in names:
        if name not in columns:
            raise ValueError(f"it lacks the column {name!r}, so another version wrote it")


def read_predictions(path: Path) -> Predictions:
    """Reads the predictions that `write_samples` wrote; raises OSError, or ValueError if a column is missing."""
    return _predictions_of(parquet.read_table(path))


def read_chunks(path: Path) -> Iterator[Predictions]:
    """Reads the predictions in chunks of bounded size."""
    with parquet.ParquetFile(path) as file:
        widest = max(getattr(field.type, "list_size", 1) for field in file.schema_arrow)
        yield from map(_predictions_of, file.iter_batches(max(1, _CELLS_READ_AT_ONCE // widest)))


def read_texts(path: Path) -> Texts:
    """Reads the texts that `write_samples` wrote; raises OSError, or ValueError if a column is missing."""
    return Texts.from_table(parquet.read_table(path))


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
