"""Defines the metrics of every problem type as functions of the examples' weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from dist_eval.metrics.calibration import CalibrationError, Confidences
from dist_eval.metrics.catalogue import OF_OUTPUT, Source, formulas
from dist_eval.metrics.confusion import ClassCounts, class_addends, confusion_of
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.ranking import AreasUnderCurves, AveragePrecisions, ranking_scores
from dist_eval.metrics.statistic import OfRows, Statistic, Sums, most_resamples_of_calls
from dist_eval.metrics.units import Units
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem

# the reason for a metric without a statistic
UNKNOWN = "there is no method to resample it"

# above this many examples, ranking them for each resample would take minutes; the same for sorted sums of scores
_MOST_RANKED_EXAMPLES, _MOST_RANKED_SCORES = 200_000, 2_000_000

_EPSILON = float(np.finfo(np.float64).eps)


def statistics_of(predictions: Predictions, units: Units | None = None) -> Iterator[Statistic]:
    """Yields all metrics of the predictions' problem type, for at least one example.

    The resampling units are by default single examples, equivalent ones as one kind.
    """
    if predictions.problem is SINGLE_LABEL:
        return statistics_of_classes(predictions, units)
    of_problem = _statistics_of_regression if predictions.problem is REGRESSION else _statistics_of_labels
    return of_problem(predictions, units or Units.single(len(predictions)))


def statistics_of_classes(
    predictions: Predictions, units: Units | None = None, cells: Units | None = None, losses: Units | None = None
) -> Iterator[Statistic]:
    """Yields the metrics of single-label classification (see `statistics_of`).

    The resampling units are by default single examples. Metrics of the confusion matrix have the units `cells`, by
    default `units`, or the cells of the matrix; mean losses have `losses`, by default `units`, or examples binned by
    loss.
    """
    label, prediction, classes = predictions.label, predictions.prediction, predictions.num_labels
    examples = len(label)
    ones, alone = np.ones(examples), functools.partial(Units.single, examples)
    cells = cells or units
    if cells:
        yield Sums(cells, class_addends(label, prediction), metrics_of_classes)
    else:
        matrix = confusion_of(label, prediction, classes).tocoo()
        kinds = Units(np.arange(matrix.nnz), matrix.data)
        yield Sums(kinds, class_addends(matrix.row, matrix.col), metrics_of_classes, of_kinds=True)
    columns = losses_of(predictions)
    losses = losses or units
    yield Sums(losses or functools.partial(Units.by_quantile, columns[0], *columns), [*columns, ones], _mean_losses)
    (confidences,) = Confidences.from_predictions(predictions)
    yield CalibrationError(units or alone, lambda: iter([confidences]))
    brier = confidences.brier
    yield Sums(units or functools.partial(Units.by_quantile, brier, brier), [brier, ones], _mean_brier)
    if classes < 2:
        return
    ranked = range(1, 2) if classes == 2 else range(classes)
    names = ("roc_auc",) if classes == 2 else ("roc_auc_ovr_macro", "roc_auc_ovr_weighted")

    def scores() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number, column in zip(ranked, ranking_scores(predictions, ranked), strict=True):
            yield label == number, column

    yield AreasUnderCurves(units or alone, scores, len(ranked), names)


def losses_of(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Returns loss and log loss of each example; the latter clips probabilities, as scikit-learn does."""
    return predictions.loss, np.clip(predictions.loss, _EPSILON, -np.log(_EPSILON))


def _statistics_of_labels(predictions: Predictions, units: Units) -> Iterator[Statistic]:
    """Yields the metrics of multi-label classification."""
    label, given, labels = predictions.label, predictions.prediction, predictions.num_labels
    ones, exact = np.ones(len(label)), (label == given).all(axis=1)
    yield Sums(units, [(label & given).T, label.T, given.T, exact, predictions.loss, ones], _metrics_of_labels)
    yield CalibrationError(units, functools.partial(Confidences.from_predictions, predictions))
    brier = np.zeros(len(label))
    for confidences in Confidences.from_predictions(predictions):
        brier += confidences.brier / labels
    yield Sums(units, [brier, ones], _mean_brier)

    def scores() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield from zip(label.T, ranking_scores(predictions, range(labels)), strict=True)

    yield AreasUnderCurves(units, scores, labels, ("roc_auc_macro", "roc_auc_weighted"))
    names = ("average_precision_macro", "average_precision_weighted")
    average_precisions = AveragePrecisions(units, scores, labels, names)
    average_precisions.most_resamples = most_resamples_of_calls(len(label))  # each call sums all scores of all labels
    if label.size > _MOST_RANKED_SCORES:
        average_precisions.no_interval = UNKNOWN
    yield average_precisions


def _statistics_of_regression(predictions: Predictions, units: Units) -> Iterator[Statistic]:
    """Yields the metrics of regression, means over the outputs."""
    yield Sums(units, _error_rows(predictions), _mean_errors)
    columns = [np.ascontiguousarray(values.T) for values in (predictions.label, predictions.prediction)]

    def spearman(drawn: np.ndarray) -> float:
        label, output = (np.take(values, drawn, axis=1) for values in columns)
        return float(rank_correlations(label, output).mean())

    ranks = OfRows(units, {"spearman": spearman})
    if len(predictions) > _MOST_RANKED_EXAMPLES:
        ranks.no_interval = UNKNOWN
    yield ranks


def statistic_of_outputs(predictions: Predictions, units: Units | Callable[[], Units]) -> Sums:
    """Returns the metrics of each output of a regression except its rank correlation, with names such as "0/mae"."""
    return Sums(units, _error_rows(predictions), _errors_of_outputs)


def rank_correlations(label: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Computes Spearman's correlation of each output, NaN where all labels or all outputs are equal."""
    from scipy.stats import spearmanr

    correlations = np.full(len(label), np.nan)
    for number, columns in enumerate(zip(label, output, strict=True)):
        if all(column.min() < column.max() for column in columns):
            correlations[number] = spearmanr(*columns).statistic
    return correlations


@dataclass(frozen=True)
class ErrorSums:
    """Sums of a regression, of shape [outputs, resamples]; the last two are of shape [resamples]."""

    absolute: np.ndarray  # of the absolute errors
    squared: np.ndarray  # of the squared errors
    y: np.ndarray  # of the labels minus their mean in the data
    x: np.ndarray  # of the outputs minus their mean in the data
    yy: np.ndarray
    xx: np.ndarray
    xy: np.ndarray
    loss: np.ndarray
    examples: np.ndarray

    @classmethod
    def from_sums(cls, sums: np.ndarray) -> ErrorSums:
        """Builds them from the sums of the addends in this order, of shape [7 * outputs + 2, resamples]."""
        return cls(*sums[:-2].reshape(7, len(sums) // 7, -1), *sums[-2:])

    @functools.cached_property
    def label_spread(self) -> np.ndarray:
        """Sums of the labels' squared deviations from their mean, NaN where they are equal up to rounding."""
        return _deviations(self.yy, self.y, self.examples)

    def pearson_correlation(self) -> np.ndarray:
        """Computes the correlation between label and output."""
        joint_spread = self.xy - self.x * self.y / self.examples
        output_spread = _deviations(self.xx, self.x, self.examples)
        return np.clip(joint_spread / np.sqrt(self.label_spread * output_spread), -1, 1)


def _deviations(squares: np.ndarray, sums: np.ndarray, examples: np.ndarray) -> np.ndarray:
    deviations = squares - sums**2 / examples
    return np.where(deviations > 1e-12 * squares, deviations, np.nan)


def _error_rows(predictions: Predictions) -> list[np.ndarray]:
    """Returns the addends of `ErrorSums`."""
    label, output = predictions.label, predictions.prediction.astype(np.float64)
    error = output - label
    with np.errstate(over="ignore"):  # reported as the reason for undefined metrics
        y, x = label - label.mean(axis=0), output - output.mean(axis=0)  # centred, to avoid cancellation
        of_outputs = (np.abs(error), error**2, y, x, y**2, x**2, x * y)
    return [*(column.T for column in of_outputs), predictions.loss, np.ones(len(label))]


def metrics_of_classes(sums: np.ndarray) -> dict[str, np.ndarray]:
    """Computes the metrics of confusion matrices, given sums of `class_addends`."""
    return _evaluate(SINGLE_LABEL, "counts", ClassCounts.of_classes(sums))


def _metrics_of_labels(sums: np.ndarray) -> dict[str, np.ndarray]:
    return _evaluate(MULTI_LABEL, "counts", ClassCounts.of_labels(sums))


def _mean_losses(sums: np.ndarray) -> dict[str, np.ndarray]:
    return _evaluate(SINGLE_LABEL, "losses", SimpleNamespace(loss=sums[0], log_loss=sums[1], examples=sums[2]))


def _mean_brier(sums: np.ndarray) -> dict[str, np.ndarray]:
    return _evaluate(SINGLE_LABEL, "brier", SimpleNamespace(brier=sums[0], examples=sums[1]))


def _mean_errors(sums: np.ndarray) -> dict[str, np.ndarray]:
    metrics = _evaluate(REGRESSION, "errors", ErrorSums.from_sums(sums))
    return {name: values.mean(axis=0) if values.ndim > 1 else values for name, values in metrics.items()}


def _errors_of_outputs(sums: np.ndarray) -> dict[str, np.ndarray]:
    metrics = _evaluate(REGRESSION, "errors", ErrorSums.from_sums(sums))
    return {
        f"{number}/{name}": row for name in OF_OUTPUT if name in metrics for number, row in enumerate(metrics[name])
    }


def _evaluate(problem: Problem, source: Source, sums: Any) -> dict[str, np.ndarray]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return {name: formula(sums) for name, formula in formulas(problem.name, source).items()}
