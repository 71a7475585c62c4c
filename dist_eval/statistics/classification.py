"""The metrics of single-label classification as statistics that can be resampled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.statistics.calibration import statistics_of_calibration
from dist_eval.statistics.confusion import margins, metrics_of_margins
from dist_eval.statistics.ranking import AreasUnderCurves
from dist_eval.statistics.resampling import Statistic, Sums
from dist_eval.statistics.units import Units

_EPSILON = float(np.finfo(np.float64).eps)


def statistics_of_classes(
    predictions: PredictionsLike, units: Units | None = None, cells: Units | None = None, losses: Units | None = None
) -> Iterator[Statistic]:
    """Yields the metrics of `compute_metrics` as statistics.

    Args:
        predictions: at least one example.
        units: the resampling units; by default single examples.
        cells: units for metrics of the confusion matrix; by default `units`, or the cells of the matrix.
        losses: units for mean losses; by default `units`, or examples binned by loss.
    """
    label, prediction, classes = predictions.label, predictions.prediction, predictions.num_labels
    cells = cells or units
    if cells is None:
        cells = Units.alike(label, prediction)
        addends = margins(cells.of_kinds(label), cells.of_kinds(prediction))
        yield Sums(cells, addends, metrics_of_margins, of_kinds=True)
    else:
        yield Sums(cells, margins(label, prediction), metrics_of_margins)
    columns_of_losses = losses_of(predictions)
    losses = losses or units or Units.similar(predictions.loss, *columns_of_losses)
    yield Sums(losses, [*columns_of_losses, np.ones(len(label))], _mean_losses)
    yield from statistics_of_calibration(predictions, units)
    if classes < 2:
        return
    units = units or Units.single(len(label))
    ranked = range(1, 2) if classes == 2 else range(classes)
    names = ("roc_auc",) if classes == 2 else ("roc_auc_ovr_macro", "roc_auc_ovr_weighted")

    def columns() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number, scores in zip(ranked, predictions.probabilities_of(ranked), strict=True):
            yield label == number, scores

    yield AreasUnderCurves(units, columns, len(ranked), names)


def losses_of(predictions: PredictionsLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns loss and log loss of each example; the latter clips probabilities, as scikit-learn does."""
    return predictions.loss, np.clip(predictions.loss, _EPSILON, -np.log(_EPSILON))


def _mean_losses(sums: np.ndarray) -> dict[str, np.ndarray]:
    return {"loss": sums[0] / sums[2], "log_loss": sums[1] / sums[2]}
