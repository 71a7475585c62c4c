"""Metrics of many confusion matrices at once, from true positives, examples and predictions of each class.

Definitions, also of what is undefined, are those of `dist_eval.metrics.computing.compute_metrics`.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def margins(label: np.ndarray, prediction: np.ndarray) -> Any:
    """Returns the addends of each example: whether it is a true positive, an example and a prediction of each class.

    Args:
        label: true classes, int64 of shape [n].
        prediction: predicted classes, int64 of shape [n].

    Returns:
        A SciPy sparse array, float64 of shape [3 * classes, n], for the classes that occur; no metric depends on the
        others.
    """
    from scipy import sparse

    classes, numbers = np.unique(np.concatenate([label, prediction]), return_inverse=True)
    label, prediction = np.split(numbers.reshape(-1), 2)
    examples, hits = np.arange(len(label)), np.flatnonzero(label == prediction)
    rows = np.concatenate([label[hits], len(classes) + label, 2 * len(classes) + prediction])
    columns = np.concatenate([hits, examples, examples])
    return sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(3 * len(classes), len(label)))


def metrics_of_margins(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Computes all metrics of confusion matrices.

    Args:
        sums: true positives, examples and predictions of each class, in the order of `margins`, float64 of shape
            [3 * classes, matrices].

    Returns:
        By name, float64 of shape [matrices], NaN where undefined.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return _metrics(*sums.reshape(3, len(sums) // 3, -1))


def _metrics(hits: np.ndarray, support: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    examples, right = support.sum(axis=0), hits.sum(axis=0)
    is_present = support + predicted > 0
    precision, recall, f1 = hits / predicted, hits / support, 2 * hits / (support + predicted)
    accuracy = right / examples
    chance = np.einsum("ij,ij->j", support, predicted)
    spreads = [examples**2 - np.einsum("ij,ij->j", one, one) for one in (support, predicted)]
    return {
        "accuracy": accuracy,
        "balanced_accuracy": _mean(recall, support > 0),
        "mcc": (right * examples - chance) / np.sqrt(spreads[0] * spreads[1]),
        "precision_macro": _mean(precision, is_present),
        "recall_macro": _mean(recall, is_present),
        "f1_macro": _mean(f1, is_present),
        "precision_micro": accuracy,
        "recall_micro": accuracy,
        "f1_micro": accuracy,
        "precision_weighted": np.where(is_present, support * precision, 0).sum(axis=0) / examples,
        "recall_weighted": accuracy,
        "f1_weighted": np.where(is_present, support * f1, 0).sum(axis=0) / examples,
    }


def _mean(figures: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Averages over the counted classes; NaN where the metric of one of them is undefined."""
    return np.where(counted, figures, 0).sum(axis=0) / counted.sum(axis=0)
