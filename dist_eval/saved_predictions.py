"""Predictions read back from `predictions.parquet`: all that is known of a run when its logits are gone.

Whatever is computed of them is equal to the last bit to what the run itself computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dist_eval.predictions import rows_of_a_piece
from dist_eval.problems import REGRESSION, Problem, problem_of


@dataclass(frozen=True)
class SavedPredictions:
    """Columns of `predictions.parquet`.

    Attributes:
        index: position in the dataset, int64 of shape [n].
        label: true labels, as in `dist_eval.Predictions`.
        prediction: predicted labels, of the same shape and dtype.
        loss: float64 of shape [n].
        probabilities: float64 of shape [n, num_labels]; of a regression, which has none, of shape [n, 0].
    """

    index: np.ndarray
    label: np.ndarray
    prediction: np.ndarray
    loss: np.ndarray
    probabilities: np.ndarray

    @classmethod
    def of_columns(cls, columns: Mapping[str, np.ndarray]) -> SavedPredictions:
        """Takes what `dist_eval.report.read_predictions` returns."""
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

    def pieces(self) -> Iterator[SavedPredictions]:
        """Cuts the predictions into pieces of bounded size."""
        step = rows_of_a_piece(self.num_labels)
        for start in range(0, len(self), step):
            yield self.at(slice(start, start + step))
