"""`predictions.parquet`: predictions on disk, and read back, when their logits are gone.

Whatever is computed of them is equal to the last bit to what the run itself computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem, problem_of
from dist_eval.metrics.predictions import PredictionsLike, rows_of_a_chunk
from dist_eval.process.files import replaced_atomically

GROUP = "group"
"""Column with the group of each example, by number, where the run has groups."""

_CELLS_READ_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class SavedPredictions:
    """Columns of `predictions.parquet`."""

    index: np.ndarray  # position in the dataset, int64 of shape [n]
    label: np.ndarray  # true labels, as in `dist_eval.Predictions`
    prediction: np.ndarray  # predicted labels, of the same shape and dtype
    loss: np.ndarray  # float64 of shape [n]
    probabilities: np.ndarray  # float64 of shape [n, num_labels]; of a regression, which has none, of shape [n, 0]

    @classmethod
    def of_columns(cls, columns: Mapping[str, np.ndarray]) -> SavedPredictions:
        """Takes what `read_predictions` returns."""
        label, prediction = columns["label"], columns["prediction"]
        none = np.empty((len(label), 0))
        if problem_of(label.dtype) is REGRESSION and label.ndim == 1:
            label, prediction = label[:, np.newaxis], prediction[:, np.newaxis]
        return cls(columns["index"], label, prediction, columns["loss"], columns.get("probabilities", none))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        return self.label.shape[1] if self.problem is REGRESSION else self.probabilities.shape[1]

    @property
    def problem(self) -> Problem:
        """What kind of labels they are."""
        return problem_of(self.label.dtype)

    def probabilities_of(self, classes: Iterable[int]) -> Iterator[np.ndarray]:
        """Yields columns of `probabilities`, float64 of shape [n] each."""
        for number in classes:
            yield self.probabilities[:, number]

    def at(self, places: np.ndarray | slice) -> SavedPredictions:
        """Returns some predictions, by their places here."""
        columns = (self.index, self.label, self.prediction, self.loss, self.probabilities)
        return SavedPredictions(*(column[places] for column in columns))

    def chunks(self) -> Iterator[SavedPredictions]:
        """Cuts the predictions into pieces of bounded size."""
        step = rows_of_a_chunk(self.num_labels)
        for start in range(0, len(self), step):
            yield self.at(slice(start, start + step))


def write_predictions(path: Path, predictions: PredictionsLike, groups: np.ndarray | None = None) -> None:
    """Writes one row per example: index, label, prediction, loss, probabilities. Equal input gives equal bytes.

    For several labels each, label and prediction are lists of true and false, one for each class. A regression has no
    probabilities; its labels and predictions are numbers, or lists of them where the head has several outputs.

    Args:
        path: the file.
        predictions: what it says.
        groups: the group of each, int64 of shape [n], for a column `group`; None if there is to be no such column.
    """
    import pyarrow as pa
    from pyarrow import parquet

    problem, outputs = predictions.problem, predictions.num_labels
    kinds = _column_kinds(problem, outputs)
    schema = pa.schema([*kinds.items(), *([] if groups is None else [(GROUP, pa.int64())])])
    # piece by piece, because the probabilities take more memory than the predictions themselves; a dictionary pays for
    # the classes only
    with (
        replaced_atomically(path) as file,
        parquet.ParquetWriter(
            file,
            schema,
            use_dictionary=["label", "prediction"] if problem is SINGLE_LABEL else False,
            column_encoding={"index": "DELTA_BINARY_PACKED"},
        ) as writer,
    ):
        written = 0
        for piece in predictions.chunks():
            columns = [_column(getattr(piece, name), kind) for name, kind in kinds.items()]
            if groups is not None:
                columns.append(pa.array(groups[written : written + len(piece)]))
                written += len(piece)
            writer.write_batch(pa.record_batch(columns, schema=schema))


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """Reads what `write_predictions` wrote, lists as two-dimensional arrays.

    Raises:
        OSError: there is no such file, or none that can be read.
    """
    from pyarrow import parquet

    table = parquet.read_table(path)
    return {name: _array(table.column(name).combine_chunks()) for name in table.column_names}


def read_pieces(path: Path) -> Iterator[SavedPredictions]:
    """Reads the same in pieces of bounded size."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        widest = max(getattr(field.type, "list_size", 1) for field in file.schema_arrow)
        for batch in file.iter_batches(max(1, _CELLS_READ_AT_ONCE // widest)):
            yield SavedPredictions.of_columns({name: _array(batch.column(name)) for name in batch.schema.names})


def _column_kinds(problem: Problem, outputs: int) -> dict[str, Any]:
    import pyarrow as pa

    kind = {SINGLE_LABEL: pa.int64(), MULTI_LABEL: pa.bool_(), REGRESSION: pa.float64()}[problem]
    if problem is MULTI_LABEL or (problem is REGRESSION and outputs > 1):
        kind = pa.list_(kind, outputs)
    kinds = {"index": pa.int64(), "label": kind, "prediction": kind, "loss": pa.float64()}
    return kinds if problem is REGRESSION else {**kinds, "probabilities": pa.list_(pa.float64(), outputs)}


def _column(values: np.ndarray, kind: Any) -> Any:
    import pyarrow as pa

    flat = pa.array(values.ravel())
    return pa.FixedSizeListArray.from_arrays(flat, kind.list_size) if pa.types.is_fixed_size_list(kind) else flat


def _array(column: Any) -> np.ndarray:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), column.type.list_size)
    return column.to_numpy(zero_copy_only=False)
