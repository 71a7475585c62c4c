"""The metrics of multi-label classification as statistics that can be resampled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.statistics.calibration import statistics_of_calibration
from dist_eval.statistics.ranking import AreasUnderCurves, AveragePrecisions
from dist_eval.statistics.resampling import Statistic, Sums
from dist_eval.statistics.units import Units

_MOST_RANKED = 2_000_000
"""Scores above which summing them in sorted order for each resample would take minutes."""


def statistics_of_labels(predictions: PredictionsLike, units: Units) -> Iterator[Statistic]:
    """Yields the metrics of `dist_eval.metrics.multilabel` as statistics.

    The average precisions are left out above 2 million scores.

    Args:
        predictions: at least one example.
        units: the resampling units.
    """
    from scipy import sparse

    label, given = predictions.label, predictions.prediction
    exact = (label == given).all(axis=1)
    rows = [sparse.csr_array(cells.T.astype(np.float64)) for cells in (label & given, label, given)]
    rows.append(sparse.csr_array(np.stack([exact, predictions.loss, np.ones(len(label))])))
    yield Sums(units, sparse.vstack(rows), _metrics)
    yield from statistics_of_calibration(predictions, units)

    def columns() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        labels = range(predictions.num_labels)
        for number, scores in zip(labels, predictions.probabilities_of(labels), strict=True):
            yield label[:, number], scores

    yield AreasUnderCurves(units, columns, predictions.num_labels, ("roc_auc_macro", "roc_auc_weighted"))
    if label.size <= _MOST_RANKED:
        names = ("average_precision_macro", "average_precision_weighted")
        yield AveragePrecisions(units, columns, predictions.num_labels, names)


def _metrics(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Computes the metrics from sums of shape [3 * labels + 3, any]: true positives, support, predictions, totals."""
    hits, support, given = sums[:-3].reshape(3, -1, sums.shape[1])
    exact, loss, count = sums[-3:]
    wrong = support + given - 2 * hits
    ratios = {"precision": (hits, given), "recall": (hits, support), "f1": (2 * hits, support + given)}
    found = {
        "subset_accuracy": exact / count,
        "hamming_loss": wrong.sum(axis=0) / (count * len(hits)),
        "loss": loss / count,
    }
    with np.errstate(divide="ignore", invalid="ignore"):
        for name, (numerator, denominator) in ratios.items():
            each = numerator / denominator
            found[f"{name}_macro"] = each.mean(axis=0)
            found[f"{name}_weighted"] = np.where(support > 0, support * each, 0).sum(axis=0) / support.sum(axis=0)
            found[f"{name}_micro"] = numerator.sum(axis=0) / denominator.sum(axis=0)
    return found
