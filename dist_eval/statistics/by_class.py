"""Intervals for the metrics of each class, label or output: for the rows of `per_class` in `results.json`.

The metrics of a class depend on three counts only: true positives, examples (support) and predictions of the class.
Examples, or groups, with the same counts are resampled as one kind (see `units`), class by class; for most of them
all three counts are 0. So resampling a class takes about the same time however many examples and other classes there
are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dist_eval.data.problem_types import REGRESSION, SINGLE_LABEL
from dist_eval.metrics.catalogue import OF_OUTPUT
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.metrics.regression import why_undefined
from dist_eval.results.scores import Interval
from dist_eval.statistics.evidence import gather_evidence
from dist_eval.statistics.intervals import too_few, wilson_interval
from dist_eval.statistics.regression import statistic_of_outputs
from dist_eval.statistics.resampling import Sums
from dist_eval.statistics.units import FEW_UNITS, SEED, Units

_RESAMPLES = 1_999
_HITS, _EXAMPLES, _PREDICTIONS = range(3)
_SINGLE_COUNTS = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]])
"""Counts of one example that is a true positive, a false negative, a false positive or a true negative."""

_NEEDS = {"precision": _PREDICTIONS, "recall": _EXAMPLES, "f1": _EXAMPLES}
"""The count that has to reach `FEW_UNITS` before a metric is bootstrapped."""

_UNDEFINED = {"precision": "never predicted", "recall": "no examples", "f1": "no examples, and never predicted"}
_ONLY_THE_MEAN = "only the mean over the outputs is resampled: each output's ranks would take as long again"


def class_intervals(
    predictions: PredictionsLike,
    metrics: Metrics,
    whole: Mapping[str, Interval],
    *,
    confidence: float = 0.95,
    groups: np.ndarray | None = None,
    sampling_fraction: float = 0.0,
    seed: int = SEED,
) -> list[dict[str, Interval]]:
    """Computes confidence intervals for the metrics of each class, label or output.

    Precision and recall are proportions (of the predictions and of the examples of a class) and get Wilson's interval;
    F1 gets a bootstrap interval if the class has at least `FEW_UNITS` examples. With groups all three are bootstrapped
    by resampling whole groups (see `metric_intervals`), if at least `FEW_UNITS` groups contain predictions or examples
    of the class. The metrics of a regression are always bootstrapped.

    Args:
        predictions: `dist_eval.Predictions`, at least one example.
        metrics: their metrics, from `compute_metrics`.
        whole: their intervals, from `metric_intervals`; reused if a regression has a single output. With several
            outputs the rank correlation of each has a reason instead of an interval, because resampling takes long.
        confidence: confidence level, between 0 and 1.
        groups: the group (cluster) of each example, of shape [n].
        sampling_fraction: see `metric_intervals`.
        seed: seed of the resampling.

    Returns:
        For each row of `metrics.per_class`, by name of the metric, an interval or the reason why there is none.

    Examples:
        >>> from dist_eval import Predictions, compute_metrics
        >>> label = np.arange(200) % 2
        >>> predicted = np.where(np.arange(200) < 20, 0, label)
        >>> found = Predictions.from_logits(np.arange(200), label, np.eye(2)[predicted])
        >>> no, yes = class_intervals(found, compute_metrics(found, ["no", "yes"]), {})
        >>> for name, one in yes.items():
        ...     print(f"{name} {one.low:.3f} {one.high:.3f} {one.method}")
        precision 0.959 1.000 wilson
        recall 0.826 0.945 wilson
        f1 0.908 0.975 bca
    """
    units = None if groups is None else Units.groups(groups)
    if metrics.problem == REGRESSION.name:
        return _of_outputs(predictions, metrics, whole, confidence, units, sampling_fraction, seed)
    found = []
    for row, (counts, sizes) in zip(metrics.per_class, _kinds(predictions, metrics, units), strict=True):
        intervals = {
            name: Interval(confidence=confidence, reason=_UNDEFINED[name])
            for name in _NEEDS
            if getattr(row, name) is None
        }
        if units is None:
            intervals = {**_proportions(counts @ sizes, confidence, sampling_fraction), **intervals}
        values = {name: getattr(row, name) for name in _NEEDS if name not in intervals}
        for name in list(values):
            if sizes[counts[_NEEDS[name]] > 0].sum() < FEW_UNITS:
                intervals[name] = too_few(confidence, are_groups=units is not None)
                del values[name]
        if values:
            # each kind is represented by the counts of one of its units
            units_of_class = Units(np.arange(len(sizes)), sizes, grouped=units is not None)
            evidence = gather_evidence(Sums(units_of_class, counts, _ratios), values, most=_RESAMPLES, seed=seed)
            intervals.update({name: one.interval(confidence, sampling_fraction) for name, one in evidence.items()})
        found.append({name: intervals[name] for name in _NEEDS})
    return found


def _proportions(counts: np.ndarray, confidence: float, sampling_fraction: float) -> dict[str, Interval]:
    """Computes Wilson's intervals from the numbers of true positives, examples and predictions of a class."""
    trials = {"precision": counts[_PREDICTIONS], "recall": counts[_EXAMPLES]}
    return {
        name: wilson_interval(counts[_HITS], count, confidence, sampling_fraction)
        for name, count in trials.items()
        if count
    }


def _kinds(
    predictions: PredictionsLike, metrics: Metrics, units: Units | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields for each class the counts of one unit of each kind, int64 of shape [3, kinds], and the kinds' sizes."""
    if units is not None:
        for number in range(len(metrics.per_class)):
            yield _kinds_of_groups(*_column(predictions, number), units)
        return
    cells = metrics.cells
    if metrics.problem == SINGLE_LABEL.name:
        totals = cells.diagonal(), cells.sum(axis=1), cells.sum(axis=0)
    else:
        totals = cells[:, 1, 1], cells[:, 1].sum(axis=1), cells[:, :, 1].sum(axis=1)
    for hits, support, predicted in zip(*totals, strict=True):
        others = len(predictions.label) - support - predicted + hits
        sizes = np.array([hits, support - hits, predicted - hits, others], dtype=np.int64)
        yield _SINGLE_COUNTS[:, sizes > 0], sizes[sizes > 0]


def _column(predictions: PredictionsLike, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns which examples belong to a class and which were predicted to, bool of shape [n] each."""
    if predictions.label.ndim == 1:
        return predictions.label == number, predictions.prediction == number
    return predictions.label[:, number], predictions.prediction[:, number]


def _kinds_of_groups(label: np.ndarray, given: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
    columns = [np.bincount(units.kind_of[which], minlength=units.kinds) for which in (label & given, label, given)]
    involved = np.flatnonzero(columns[_EXAMPLES] + columns[_PREDICTIONS])
    counts, sizes = np.unique(np.stack(columns)[:, involved], axis=1, return_counts=True)
    others = units.kinds - len(involved)
    if not others:
        return counts, sizes
    return np.concatenate([counts, np.zeros((3, 1), dtype=np.int64)], axis=1), np.append(sizes, others)


def _ratios(sums: np.ndarray) -> dict[str, np.ndarray]:
    hits, support, predicted = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"precision": hits / predicted, "recall": hits / support, "f1": 2 * hits / (support + predicted)}


def _of_outputs(
    predictions: PredictionsLike,
    metrics: Metrics,
    whole: Mapping[str, Interval],
    confidence: float,
    units: Units | None,
    sampling_fraction: float,
    seed: int,
) -> list[dict[str, Interval]]:
    if len(metrics.per_class) == 1:
        return [{name: whole[name] for name in OF_OUTPUT}]
    label, prediction = predictions.label, predictions.prediction
    found, values = [], {}
    for number, row in enumerate(metrics.per_class):
        reasons = {"spearman": _ONLY_THE_MEAN, **why_undefined(label[:, number], prediction[:, number])}
        found.append({name: Interval(confidence=confidence, reason=reason) for name, reason in reasons.items()})
        values.update({f"{number}/{name}": getattr(row, name) for name in OF_OUTPUT if name not in reasons})
    statistic = statistic_of_outputs(predictions, units or Units.single(len(label)))
    for name, evidence in gather_evidence(statistic, values, most=_RESAMPLES, seed=seed).items():
        output, figure = name.split("/")
        found[int(output)][figure] = evidence.interval(confidence, sampling_fraction)
    return [{name: intervals[name] for name in OF_OUTPUT} for intervals in found]
