"""Confidence intervals of the metrics of each class, label or output.

The metrics of a class depend on only three counts: true positives, examples (support) and predictions of the class.
Examples or groups with equal counts are resampled as one kind (see `units`), class by class; for most of them all three
counts are 0. So the time to resample a class hardly depends on the number of examples and classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dist_eval.metrics.catalogue import OF_OUTPUT
from dist_eval.metrics.computing import Metrics, reasons_of_output
from dist_eval.metrics.confusion import ClassCounts, class_totals
from dist_eval.metrics.definitions import statistic_of_outputs
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.statistic import Statistic, Sums
from dist_eval.metrics.units import FEW_UNITS, SEED, Units
from dist_eval.petals.base_model.problem_types import REGRESSION
from dist_eval.results.scores import Interval
from dist_eval.statistics.evidence import bootstrap_intervals
from dist_eval.statistics.intervals import too_few, wilson_interval

_CLASS_RESAMPLES = 1_999

# rows of the counts
_HITS, _EXAMPLES, _PREDICTIONS = range(3)

# counts of a single true positive, false negative, false positive and true negative
_SINGLE_COUNTS = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]])

# the count that must reach `FEW_UNITS` before a metric is bootstrapped
_NEEDS = {"precision": _PREDICTIONS, "recall": _EXAMPLES, "f1": _EXAMPLES}

_UNDEFINED = {"precision": "never predicted", "recall": "no examples", "f1": "no examples, and never predicted"}
_ONLY_THE_MEAN = "only the mean over the outputs is resampled; each output's ranks would take as long again"


def class_intervals(
    predictions: Predictions,
    metrics: Metrics,
    whole: Mapping[str, Interval],
    *,
    confidence: float = 0.95,
    sampling_fraction: float = 0.0,
    seed: int = SEED,
) -> list[dict[str, Interval]]:
    """Computes confidence intervals for the metrics of each class, label or output.

    Precision and recall are proportions (of the predictions and of the examples of a class) and get Wilson's interval;
    F1 gets a bootstrap interval if the class has at least `FEW_UNITS` examples. With groups all three are bootstrapped
    by resampling whole groups (see `metric_intervals`), if at least `FEW_UNITS` groups contain predictions or examples
    of the class. The metrics of a regression are always bootstrapped.

    Args:
        predictions: at least one example.
        metrics: their metrics, from `compute_metrics`.
        whole: their intervals, from `metric_intervals`; reused if a regression has a single output. With several
            outputs the rank correlation of each has a reason instead of an interval, because resampling takes long.
        confidence: confidence level, between 0 and 1.
        sampling_fraction: see `metric_intervals`.
        seed: seed of the resampling.

    Returns:
        For each row of `metrics.per_class`, an interval or the reason for its absence, by name of the metric.

    Examples:
        >>> from dist_eval import Predictions, compute_metrics
        >>> label = np.arange(200) % 2
        >>> predicted = np.where(np.arange(200) < 20, 0, label)
        >>> found = Predictions.from_logits(np.arange(200), label, np.eye(2)[predicted])
        >>> no, yes = class_intervals(found, compute_metrics(found, ["no", "yes"]), {})
        >>> for name, interval in yes.items():
        ...     print(f"{name} {interval.low:.3f} {interval.high:.3f} {interval.method}")
        precision 0.959 1.000 wilson
        recall 0.826 0.945 wilson
        f1 0.908 0.975 bca
    """
    units = None if predictions.group is None else Units.groups(predictions.group)
    bootstrap = functools.partial(
        bootstrap_intervals,
        confidence=confidence,
        sampling_fraction=sampling_fraction,
        most=_CLASS_RESAMPLES,
        seed=seed,
    )
    if metrics.problem == REGRESSION.name:
        return _intervals_of_outputs(predictions, metrics, whole, confidence, units, bootstrap)
    kinds = _kinds_of_cells(metrics.cells) if units is None else _kinds_of_groups(predictions, units)
    rows = []
    for row, (counts, sizes) in zip(metrics.per_class, kinds, strict=True):
        intervals, values = {}, {}
        for name, needed in _NEEDS.items():
            value, trials = getattr(row, name), counts[needed] @ sizes
            if value is None:
                intervals[name] = Interval(confidence=confidence, reason=_UNDEFINED[name])
            elif units is None and name != "f1":
                intervals[name] = wilson_interval(counts[_HITS] @ sizes, trials, confidence, sampling_fraction)
            elif sizes[counts[needed] > 0].sum() < FEW_UNITS:
                intervals[name] = too_few(confidence, are_groups=units is not None)
            else:
                values[name] = value
        if values:
            # each kind is represented by the counts of one of its units
            units_of_class = Units(np.arange(len(sizes)), sizes, grouped=units is not None)
            intervals |= bootstrap(Sums(units_of_class, counts, _metrics_of_class, of_kinds=True), values)
        rows.append({name: intervals[name] for name in _NEEDS})
    return rows


def _kinds_of_cells(cells: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields for each class the counts of one example of each kind, int64 of shape [3, kinds], and the kinds' sizes."""
    examples = cells.sum() if cells.ndim == 2 else cells[0].sum()
    for hits, support, predicted in zip(*class_totals(cells), strict=True):
        sizes = np.array([hits, support - hits, predicted - hits, examples - support - predicted + hits])
        yield _SINGLE_COUNTS[:, sizes > 0], sizes[sizes > 0]


def _kinds_of_groups(predictions: Predictions, units: Units) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the same for groups of examples."""
    label, prediction, numbers = predictions.label, predictions.prediction, range(predictions.num_labels)
    columns: Iterable[tuple[np.ndarray, np.ndarray]]
    if label.ndim > 1:
        columns = zip(label.T, prediction.T, strict=True)
    else:
        columns = ((label == number, prediction == number) for number in numbers)
    for is_class, is_predicted in columns:
        counts = np.stack(
            [
                np.bincount(units.kind_of[which], minlength=units.kinds)
                for which in (is_class & is_predicted, is_class, is_predicted)
            ]
        )
        is_involved = counts.any(axis=0)  # most groups are not, and sorting them would take long
        kinds, sizes = np.unique(counts[:, is_involved], axis=1, return_counts=True)
        others = units.kinds - is_involved.sum()
        if others:
            kinds, sizes = np.pad(kinds, ((0, 0), (0, 1))), np.append(sizes, others)
        yield kinds, sizes


def _metrics_of_class(sums: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[0] for name, values in ClassCounts.of_classes(sums).of_each.items()}


def _intervals_of_outputs(
    predictions: Predictions,
    metrics: Metrics,
    whole: Mapping[str, Interval],
    confidence: float,
    units: Units | None,
    bootstrap: Callable[[Statistic, Mapping[str, float]], dict[str, Interval]],
) -> list[dict[str, Interval]]:
    if len(metrics.per_class) == 1:
        return [{name: whole[name] for name in OF_OUTPUT}]
    label, prediction = predictions.label, predictions.prediction
    intervals: dict[str, Interval] = {}
    values = {}
    for number, row in enumerate(metrics.per_class):
        reasons = {"spearman": _ONLY_THE_MEAN, **reasons_of_output(label[:, number], prediction[:, number])}
        for name in OF_OUTPUT:
            if name in reasons:
                intervals[f"{number}/{name}"] = Interval(confidence=confidence, reason=reasons[name])
            else:
                values[f"{number}/{name}"] = getattr(row, name)
    statistic = statistic_of_outputs(predictions, units or Units.single(len(label)))
    intervals |= bootstrap(statistic, values)
    return [{name: intervals[f"{number}/{name}"] for name in OF_OUTPUT} for number in range(len(metrics.per_class))]
