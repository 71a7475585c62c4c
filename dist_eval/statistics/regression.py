"""The metrics of regression as statistics: functions of sums, and rank correlations, recomputed for each resample."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.statistics.resampling import OfRows, Statistic, Sums
from dist_eval.statistics.units import Units

_MOST_RANKED = 200_000
"""Examples above which ranking them for each resample would take minutes."""


def statistics_of_regression(predictions: PredictionsLike, units: Units) -> Iterator[Statistic]:
    """Yields the metrics of `dist_eval.metrics.regression`, means over the outputs, as statistics.

    Args:
        predictions: at least one example.
        units: the resampling units.
    """
    label, output = predictions.label, predictions.prediction.astype(np.float64)
    yield Sums(units, _columns(predictions), _metrics)
    if len(label) <= _MOST_RANKED:
        yield OfRows(units, {"spearman": functools.partial(_spearman, label, output)})


def statistic_of_outputs(predictions: PredictionsLike, units: Units) -> Sums:
    """Returns the metrics of each output except its rank correlation as a statistic, with names such as "0/mae".

    Args:
        predictions: at least one example.
        units: the resampling units.
    """
    return Sums(units, _columns(predictions), _metrics_of_outputs)


def _columns(predictions: PredictionsLike) -> np.ndarray:
    """Returns the addends of the sums, float64 of shape [7 * outputs + 2, n]."""
    label, output = predictions.label, predictions.prediction.astype(np.float64)
    y, x = label - label.mean(axis=0), output - output.mean(axis=0)  # centred, to avoid cancellation
    error = output - label
    columns = [np.abs(error), error**2, y, x, y**2, x**2, x * y]
    rows = np.concatenate([np.stack(columns).transpose(2, 0, 1).reshape(-1, len(label)), predictions.loss[np.newaxis]])
    return np.concatenate([rows, np.ones((1, len(label)))])


def _metrics(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Computes the metrics from sums of shape [7 * outputs + 2, any]."""
    return {**{name: values.mean(axis=0) for name, values in _each(sums).items()}, "loss": sums[-2] / sums[-1]}


def _metrics_of_outputs(sums: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{number}/{name}": one for name, values in _each(sums).items() for number, one in enumerate(values)}


def _each(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Computes the metrics of each output, of shape [outputs, any]."""
    count = sums[-1]
    absolute, squared, y, x, yy, xx, xy = sums[:-2].reshape(-1, 7, sums.shape[1]).transpose(1, 0, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_labels, of_outputs = _deviations(yy, y, count), _deviations(xx, x, count)
        return {
            "mae": absolute / count,
            "mse": squared / count,
            "rmse": np.sqrt(squared / count),
            "r2": 1 - squared / of_labels,
            "pearson": (xy - x * y / count) / np.sqrt(of_labels * of_outputs),
        }


def _deviations(squares: np.ndarray, sums: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Returns the sum of squared deviations from the mean, NaN where the values are equal up to rounding."""
    found = squares - sums**2 / count
    return np.where(found > 1e-12 * squares, found, np.nan)


def _spearman(label: np.ndarray, output: np.ndarray, positions: np.ndarray) -> float | None:
    from scipy.stats import spearmanr

    found = []
    for number in range(label.shape[1]):
        columns = label[positions, number], output[positions, number]
        if any(column.min() == column.max() for column in columns):
            return None
        found.append(spearmanr(*columns).statistic)
    return float(np.mean(found))
