"""Confusion matrices, and the counts of each class or label that determine metrics.

Matrices of classes are sparse arrays, because with many classes nearly all cells are empty.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION

# maximum number of classes for which results contain the whole matrix
MOST_DENSE_CLASSES = 256


def confusion_matrix(predictions: Predictions) -> Any:
    """Counts examples by truth (row) and prediction (column).

    It is a SciPy sparse array, int64 of shape [classes, classes]; in a multi-label problem it is int64 of shape
    [labels, 2, 2], in a regression of shape [0, 0].
    """
    outputs = predictions.num_labels
    if predictions.problem is REGRESSION:
        return np.zeros((0, 0), dtype=np.int64)
    if predictions.problem is not MULTI_LABEL:
        # in one step: adding sparse matrices of chunks would copy the sum for each chunk
        return confusion_of(predictions.label, predictions.prediction, outputs)
    hits, support, predicted = np.zeros((3, outputs), dtype=np.int64)
    for chunk in predictions.chunks():
        label, given = chunk.label, chunk.prediction
        hits += (label & given).sum(axis=0)
        support += label.sum(axis=0)
        predicted += given.sum(axis=0)
    neither = len(predictions) - support - predicted + hits
    return np.stack([neither, predicted - hits, support - hits, hits], axis=1).reshape(outputs, 2, 2)


def confusion_of(label: np.ndarray, prediction: np.ndarray, classes: int, count: np.ndarray | None = None) -> Any:
    """Counts examples by true class (row) and predicted class (column), integers of shape [n].

    Each one stands for `count` examples, int64 of shape [n], by default 1. The matrix is a SciPy sparse array, int64 of
    shape [classes, classes], without empty cells, row by row.
    """
    from scipy import sparse

    if count is None:
        cells = label * classes + prediction
        if classes**2 > len(cells):
            cells, count = np.unique(cells, return_counts=True)
        else:  # faster than sorting
            counts = np.bincount(cells)
            cells = np.flatnonzero(counts)
            count = counts[cells]
        label, prediction = np.divmod(cells, classes)
    return sparse.coo_array((count, (label, prediction)), shape=(classes, classes)).tocsr()


def class_totals(cells: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns true positives, examples and predictions of each class or label from a confusion matrix, int64."""
    if cells.ndim == 3:
        return cells[:, 1, 1], cells[:, 1].sum(axis=1), cells[:, :, 1].sum(axis=1)
    return cells.diagonal(), cells.sum(axis=1), cells.sum(axis=0)


def class_addends(label: np.ndarray, prediction: np.ndarray) -> Any:
    """Returns the addends of each example: whether it is a true positive, an example and a prediction of each class.

    They are a SciPy sparse array, float64 of shape [3 * classes, n], for the classes that occur.
    """
    from scipy import sparse

    classes, numbers = np.unique(np.concatenate([label, prediction]), return_inverse=True)
    label, prediction = np.split(numbers.reshape(-1), 2)
    examples, hits = np.arange(len(label)), np.flatnonzero(label == prediction)
    rows = np.concatenate([label[hits], len(classes) + label, 2 * len(classes) + prediction])
    columns = np.concatenate([hits, examples, examples])
    return sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(3 * len(classes), len(label)))


def most_confused(matrix: Any, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `most` classes with the most mistakes, ascending, and their matrix, int64.

    The given matrix is as from `confusion_of`. If classes are omitted, the last row and column are their sums. A single
    further class is kept, not replaced by a sum.
    """
    classes = matrix.shape[0]
    if classes <= most + 1:
        return np.arange(classes), matrix.toarray()
    mistakes = matrix.sum(axis=0) + matrix.sum(axis=1) - 2 * matrix.diagonal()
    kept = np.sort(np.argsort(-mistakes, kind="stable")[:most])
    place = np.full(classes, most)
    place[kept] = np.arange(most)
    cells = matrix.tocoo()
    return kept, confusion_of(place[cells.row], place[cells.col], most + 1, cells.data).toarray()


@dataclass(frozen=True)
class ClassCounts:
    """Counts of examples, predictions and true positives of each class or label.

    The last axis of every array is resamples; the data themselves are one column.
    """

    hits: np.ndarray  # true positives of each class, of shape [classes, resamples]
    support: np.ndarray  # examples of each class, of this shape
    predicted: np.ndarray  # predictions of each class, of this shape
    counted: np.ndarray  # whether the class counts in a macro average, of this shape
    right: np.ndarray  # examples with all labels correct, of shape [resamples]
    examples: np.ndarray  # of shape [resamples]
    loss: np.ndarray | None = None  # sum of the losses, of shape [resamples]; only in a multi-label problem

    @classmethod
    def of_classes(cls, sums: np.ndarray) -> ClassCounts:
        """Builds counts from sums of `class_addends`; classes that occur or are predicted count in macro averages."""
        hits, support, predicted = sums.reshape(3, len(sums) // 3, -1)
        return cls(hits, support, predicted, support + predicted > 0, hits.sum(axis=0), support.sum(axis=0))

    @classmethod
    def of_labels(cls, sums: np.ndarray) -> ClassCounts:
        """Builds counts from sums of hits, support and predictions per label, correct examples, losses and examples."""
        hits, support, predicted = sums[:-3].reshape(3, len(sums) // 3 - 1, -1)
        right, loss, examples = sums[-3:]
        return cls(hits, support, predicted, np.ones(hits.shape, dtype=bool), right, examples, loss)

    @classmethod
    def of_matrix(cls, cells: Any) -> ClassCounts:
        """Builds counts from a confusion matrix (see `confusion_matrix`), with one column.

        A matrix of labels does not determine the number of examples with all labels correct: it is NaN.
        """
        hits, support, predicted = (column.astype(np.float64)[:, np.newaxis] for column in class_totals(cells))
        examples = np.array([cells.sum() / (len(hits) if cells.ndim == 3 else 1)])
        counted = support + predicted > 0 if cells.ndim == 2 else np.ones(hits.shape, dtype=bool)
        right = hits.sum(axis=0) if cells.ndim == 2 else np.full(1, np.nan)
        return cls(hits, support, predicted, counted, right, examples)

    @functools.cached_property
    def ratios(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Numerator and denominator of the metrics of each class, by name."""
        return {
            "precision": (self.hits, self.predicted),
            "recall": (self.hits, self.support),
            "f1": (2 * self.hits, self.support + self.predicted),
        }

    @functools.cached_property
    def of_each(self) -> dict[str, np.ndarray]:
        """The metrics of each class by name, of shape [classes, resamples]; NaN where undefined."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return {name: above / below for name, (above, below) in self.ratios.items()}

    @property
    def wrong(self) -> np.ndarray:
        """False negatives and false positives of each class together."""
        return self.support + self.predicted - 2 * self.hits

    def mean(self, ratio: str, counted: np.ndarray) -> np.ndarray:
        """Averages one of `OF_CLASS` over some classes."""
        return np.where(counted, self.of_each[ratio], 0).sum(axis=0) / counted.sum(axis=0)

    def macro(self, ratio: str) -> np.ndarray:
        """Averages one of `OF_CLASS` over the classes."""
        return self.mean(ratio, self.counted)

    def weighted(self, ratio: str) -> np.ndarray:
        """Averages one of `OF_CLASS` over the classes, weighted by their examples."""
        total = self.support.sum(axis=0)
        return np.where(self.support > 0, self.support * self.of_each[ratio], 0).sum(axis=0) / total

    def micro(self, ratio: str) -> np.ndarray:
        """Computes one of `OF_CLASS` from the sums over all classes."""
        above, below = self.ratios[ratio]
        return above.sum(axis=0) / below.sum(axis=0)

    def matthews_correlation(self) -> np.ndarray:
        """Computes the correlation between true and predicted class.

        J. Gorodkin (2004), "Comparing two K-category assignments by a K-category correlation coefficient",
        Computational Biology and Chemistry 28, 367-374.
        """
        chance = np.einsum("ij,ij->j", self.support, self.predicted)
        of_labels, of_predictions = (
            self.examples**2 - np.einsum("ij,ij->j", counts, counts) for counts in (self.support, self.predicted)
        )
        return (self.right * self.examples - chance) / np.sqrt(of_labels * of_predictions)
