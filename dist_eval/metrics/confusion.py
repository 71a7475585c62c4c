"""Confusion matrices; those of classes are sparse arrays, as with many classes nearly all cells are empty."""

from __future__ import annotations

from typing import Any

import numpy as np

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION
from dist_eval.metrics.predictions import PredictionsLike

# classes up to which results have every cell of the matrix
MOST_DENSE_CLASSES = 256


def confusion_matrix(predictions: PredictionsLike) -> Any:
    """Counts examples by truth (row) and prediction (column).

    Returns:
        int64 of shape [classes, classes], a SciPy sparse array; in a multi-label problem of shape [labels, 2, 2], in a
        regression of shape [0, 0].
    """
    outputs = predictions.num_labels
    if predictions.problem is REGRESSION:
        return np.zeros((0, 0), dtype=np.int64)
    if predictions.problem is not MULTI_LABEL:
        # at once: adding up sparse matrices of chunks would copy the sum for each chunk
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
    """Counts examples by true class (row) and predicted class (column).

    Args:
        label: true classes, integers of shape [n].
        prediction: predicted classes, integers of shape [n].
        classes: number of classes.
        count: how many examples each one stands for, int64 of shape [n]; by default 1.

    Returns:
        A SciPy sparse array, int64 of shape [classes, classes], without empty cells, row by row.
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


def margins(label: np.ndarray, prediction: np.ndarray) -> Any:
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
    """Reduces a matrix of many classes to those with the most mistakes.

    Args:
        matrix: as from `confusion_of`.
        most: number of classes to keep; one class more is kept, too, rather than called the others.

    Returns:
        The classes, ascending, and their matrix, int64. If some are left out, its last row and column are their sums.
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
