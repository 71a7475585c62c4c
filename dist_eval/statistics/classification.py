"""Intervals for all metrics: which statistic each one is, and how it is resampled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dist_eval.data.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.metrics.computing import Metrics
from dist_eval.statistics.calibration import statistics_of_calibration
from dist_eval.statistics.confusion import margins, metrics_of_margins
from dist_eval.statistics.intervals import Interval, gather_evidence, wilson
from dist_eval.statistics.multilabel import statistics_of_labels
from dist_eval.statistics.ranking import AreasUnderCurves
from dist_eval.statistics.regression import statistics_of_regression
from dist_eval.statistics.resampling import SEED, Statistic, Sums, Units

PROPORTIONS = ("accuracy", "precision_micro", "recall_micro", "f1_micro", "recall_weighted")
"""Metrics that are, with one label and one prediction for each example, the share of right predictions."""

_PROPORTIONS_OF = {
    SINGLE_LABEL.name: PROPORTIONS,
    MULTI_LABEL.name: ("subset_accuracy",),
    REGRESSION.name: (),
}

_EPSILON = float(np.finfo(np.float64).eps)


class Classified(Protocol):
    """What the metrics of a classifier depend on, such as `dist_eval.Predictions`."""

    @property
    def label(self) -> np.ndarray:
        """True class, int64 of shape [n]."""

    @property
    def prediction(self) -> np.ndarray:
        """Predicted class, int64 of shape [n]."""

    @property
    def loss(self) -> np.ndarray:
        """Cross-entropy in nats, float64 of shape [n]."""

    @property
    def num_labels(self) -> int:
        """Number of classes."""

    def probabilities_of(self, classes: Iterable[int]) -> Iterator[np.ndarray]:
        """Yields the probabilities of some classes, float64 of shape [n] each."""


def metric_intervals(
    predictions: Any,
    metrics: Metrics,
    *,
    confidence: float = 0.95,
    groups: np.ndarray | None = None,
    further: Sequence[Statistic] = (),
    resamples: int | None = None,
    most: int | None = None,
    seed: int = SEED,
) -> dict[str, Interval]:
    """Computes intervals: Wilson's for proportions, for others the bootstrap's, none below `FEW_UNITS` units.

    Args:
        predictions: `dist_eval.Predictions`, at least one example (or what is `Classified`, `Regressed` or `Labelled`).
        metrics: what `compute_metrics` says of them.
        confidence: level, between 0 and 1.
        groups: what examples belong together, of shape [n]: whole groups are then drawn, for all metrics, also for
            proportions, because what Wilson's interval assumes does not hold within groups: C. A. Field and A. H. Welsh
            (2007), "Bootstrapping clustered data", JRSS B 69, 369-390; A. C. Cameron, J. B. Gelbach and D. L. Miller
            (2008), "Bootstrap-based improvements for inference with clustered errors", Review of Economics and
            Statistics 90, 414-427. With few groups intervals would be too narrow, however many examples there are.
        further: statistics for metrics that this module does not know.
        resamples: their number (see `gather_evidence`).
        most: a number of them that is enough.
        seed: of the resamples.

    Returns:
        An interval, or the reason why there is none, by the names of `metrics.values`, in their order.

    Examples:
        >>> from dist_eval import Predictions, compute_metrics
        >>> label = np.arange(200) % 2
        >>> predicted = np.where(np.arange(200) < 20, 1 - label, label)
        >>> found = Predictions.from_logits(np.arange(200), label, np.eye(2)[predicted])
        >>> intervals = metric_intervals(found, compute_metrics(found, ["no", "yes"]))
        >>> for name in ("accuracy", "f1_macro"):
        ...     print(f"{name} {intervals[name].low:.3f} {intervals[name].high:.3f} {intervals[name].method}")
        accuracy 0.851 0.934 wilson
        f1_macro 0.859 0.940 bca
    """
    values = {name: value for name, value in metrics.values.items() if value is not None}
    found = {name: Interval(confidence, reason=reason) for name, reason in metrics.undefined.items()}
    if groups is None:
        for name in _PROPORTIONS_OF[metrics.problem]:
            if name in values:
                trials = len(predictions.label)
                low, high = wilson(round(values[name] * trials), trials, confidence)
                found[name] = Interval(confidence, low, high, "wilson")
    drawn = None if groups is None else Units.groups(groups)
    statistics: Iterator[Statistic]
    if metrics.problem == REGRESSION.name:
        statistics = statistics_of_regression(predictions, drawn or Units.single(len(predictions.label)))
    elif metrics.problem == MULTI_LABEL.name:
        statistics = statistics_of_labels(predictions, drawn or Units.single(len(predictions.label)))
    else:
        statistics = statistics_of(predictions, drawn)
    for statistic in (*statistics, *further):
        wanted = {name: values[name] for name in statistic.names if name in values and name not in found}
        if wanted:
            evidence = gather_evidence(statistic, wanted, resamples=resamples, most=most, seed=seed)
            found.update({name: one.interval(confidence) for name, one in evidence.items()})
    unknown = Interval(confidence, reason="nothing is known of how it could be resampled")
    return {name: found.get(name, unknown) for name in metrics.values}


def statistics_of(
    predictions: Classified, units: Units | None = None, cells: Units | None = None, losses: Units | None = None
) -> Iterator[Statistic]:
    """Yields what the metrics of `compute_metrics` are as statistics.

    Args:
        predictions: at least one example.
        units: what is drawn; by default single examples.
        cells: what is drawn for metrics of the confusion matrix; by default `units`, or its cells.
        losses: what is drawn for mean losses; by default `units`, or examples of similar losses.
    """
    label, prediction, classes = predictions.label, predictions.prediction, predictions.num_labels
    cells = cells or units or Units.alike(label, prediction)
    yield Sums(cells, margins(label, prediction), metrics_of_margins)
    columns_of_losses = losses_of(predictions)
    losses = losses or units or Units.similar(predictions.loss, *columns_of_losses)
    yield Sums(losses, np.stack([*columns_of_losses, np.ones(len(label))]), _mean_losses)
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


def losses_of(predictions: Classified) -> tuple[np.ndarray, np.ndarray]:
    """Returns loss and log loss of each example; scikit-learn's keeps probabilities an epsilon away from 0 and 1."""
    return predictions.loss, np.clip(predictions.loss, _EPSILON, -np.log(_EPSILON))


def _mean_losses(sums: np.ndarray) -> dict[str, np.ndarray]:
    return {"loss": sums[0] / sums[2], "log_loss": sums[1] / sums[2]}


def values_of(statistics: Iterable[Statistic]) -> Mapping[str, float]:
    """Computes the metrics of the data themselves, NaN where undefined."""
    return {
        name: float(value[0])
        for statistic in statistics
        for name, value in statistic.values(statistic.units.whole()).items()
    }
