"""What the figures of a regression are as statistics: sums over examples, and ranks, which every resample has anew."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from dist_eval.statistics.resampling import OfRows, Statistic, Sums, Units

_MOST_RANKED = 200_000
"""Examples beyond which ranking them again for each resample would take minutes."""


class Regressed(Protocol):
    """What the figures of a regression depend on, such as `dist_eval.Predictions`."""

    @property
    def label(self) -> np.ndarray:
        """True values, float64 of shape [n, outputs]."""

    @property
    def prediction(self) -> np.ndarray:
        """Predicted values, float of shape [n, outputs]."""

    @property
    def loss(self) -> np.ndarray:
        """Mean squared error, float64 of shape [n]."""


def statistics_of_regression(predictions: Regressed, units: Units) -> Iterator[Statistic]:
    """Yields what the figures of `dist_eval.metrics.regression` are as statistics; each is a mean over the outputs.

    Args:
        predictions: at least one example.
        units: what is drawn.
    """
    label, output = predictions.label, predictions.prediction.astype(np.float64)
    yield Sums(units, _columns(predictions), _figures)
    if len(label) <= _MOST_RANKED:
        yield OfRows(units, {"spearman": functools.partial(_spearman, label, output)})


def statistic_of_outputs(predictions: Regressed, units: Units) -> Sums:
    """Returns the figures of each output but its rank correlation as a statistic, with names such as "0/mae".

    Args:
        predictions: at least one example.
        units: what is drawn.
    """
    return Sums(units, _columns(predictions), _figures_of_outputs)


def _columns(predictions: Regressed) -> np.ndarray:
    """Returns what is summed up, float64 of shape [7 * outputs + 2, n]."""
    label, output = predictions.label, predictions.prediction.astype(np.float64)
    y, x = label - label.mean(axis=0), output - output.mean(axis=0)  # or squares would lose digits to their mean
    error = output - label
    columns = [np.abs(error), error**2, y, x, y**2, x**2, x * y]
    rows = np.concatenate([np.stack(columns).transpose(2, 0, 1).reshape(-1, len(label)), predictions.loss[np.newaxis]])
    return np.concatenate([rows, np.ones((1, len(label)))])


def _figures(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Computes the figures of sums of shape [7 * outputs + 2, any]."""
    return {**{name: values.mean(axis=0) for name, values in _each(sums).items()}, "loss": sums[-2] / sums[-1]}


def _figures_of_outputs(sums: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{number}/{name}": one for name, values in _each(sums).items() for number, one in enumerate(values)}


def _each(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Computes the figures of each output, of shape [outputs, any]."""
    count = sums[-1]
    absolute, squared, y, x, yy, xx, xy = sums[:-2].reshape(-1, 7, sums.shape[1]).transpose(1, 0, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_labels, of_outputs = yy - y**2 / count, xx - x**2 / count
        return {
            "mae": absolute / count,
            "mse": squared / count,
            "rmse": np.sqrt(squared / count),
            "r2": 1 - squared / np.where(of_labels > _smallest(yy), of_labels, np.nan),
            "pearson": (xy - x * y / count)
            / np.sqrt(
                np.where(of_labels > _smallest(yy), of_labels, np.nan)
                * np.where(of_outputs > _smallest(xx), of_outputs, np.nan)
            ),
        }


def _smallest(squares: np.ndarray) -> np.ndarray:
    """Returns the spread below which all values of a resample are equal but for rounding."""
    return 1e-12 * squares


def _spearman(label: np.ndarray, output: np.ndarray, positions: np.ndarray) -> float | None:
    from scipy.stats import spearmanr

    found = []
    for number in range(label.shape[1]):
        columns = label[positions, number], output[positions, number]
        if any(column.min() == column.max() for column in columns):
            return None
        found.append(spearmanr(*columns).statistic)
    return float(np.mean(found))
