"""Confusion matrices of single labels, as sparse arrays: with many classes nearly all cells are empty."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_DENSE_CLASSES = 256
"""Classes up to which results have every cell of the matrix."""


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
        cells, count = np.unique(label * classes + prediction, return_counts=True)
        label, prediction = np.divmod(cells, classes)
    return sparse.coo_array((count, (label, prediction)), shape=(classes, classes)).tocsr()


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
