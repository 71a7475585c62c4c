"""Intervals for the figures of each class, label or output: for the rows of `per_class` in `results.json`.

The figures of a class depend on counts alone: on the hits, the examples and the predictions of it. Examples, or groups,
that bring the same counts are drawn as one kind, as everywhere (see `resampling`), class by class: most bring nothing.
So resamples of a class take about the same time however many examples and other classes there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dist_eval.data.problems import REGRESSION, SINGLE_LABEL
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.regression import FIGURES, why_undefined
from dist_eval.statistics.evidence import gather_evidence
from dist_eval.statistics.intervals import Interval, too_few, wilson
from dist_eval.statistics.regression import statistic_of_outputs
from dist_eval.statistics.resampling import FEW_UNITS, SEED, Sums, Units

_RESAMPLES = 1_999
_HITS, _EXAMPLES, _PREDICTIONS = range(3)
_ALONE = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]])
"""What an example brings to a class: a hit, an example that was missed, a wrong prediction, or nothing."""

_NEEDS = {"precision": _PREDICTIONS, "recall": _EXAMPLES, "f1": _EXAMPLES}
"""What there have to be enough of for a figure's resamples."""

_UNDEFINED = {"precision": "never predicted", "recall": "no examples", "f1": "no examples, and never predicted"}
_ONLY_THE_MEAN = "only the mean over the outputs is resampled: each output's ranks would take as long again"


def class_intervals(
    predictions: Any,
    metrics: Metrics,
    whole: Mapping[str, Interval],
    *,
    confidence: float = 0.95,
    groups: np.ndarray | None = None,
    seed: int = SEED,
) -> list[dict[str, Interval]]:
    """Computes intervals for the figures of each class, label or output.

    Precision and recall have Wilson's, as shares of the predictions and of the examples of a class, F1 the bootstrap's
    where the class has `FEW_UNITS` examples. With groups whole ones are drawn for all three (see `metric_intervals`),
    where so many groups have predictions or examples of the class. The figures of a regression have the bootstrap's.

    Args:
        predictions: `dist_eval.Predictions`, at least one example.
        metrics: what `compute_metrics` says of them.
        whole: what `metric_intervals` says of them; these are those of the only output of a regression. Where it has
            several, their rank correlations have a reason, because to resample these would take long.
        confidence: level, between 0 and 1.
        groups: what examples belong together, of shape [n].
        seed: of the resamples.

    Returns:
        For each row of `metrics.per_class` an interval, or the reason why there is none, by name of the figure.

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
        return _of_outputs(predictions, metrics, whole, confidence, units, seed)
    found = []
    for row, (brings, times) in zip(metrics.per_class, _kinds(predictions, metrics, units), strict=True):
        intervals = {name: Interval(confidence, reason=_UNDEFINED[name]) for name in _NEEDS if row[name] is None}
        if units is None:
            intervals = {**_proportions(brings @ times, confidence), **intervals}
        values = {name: row[name] for name in _NEEDS if name not in intervals}
        for name in list(values):
            if times[brings[_NEEDS[name]] > 0].sum() < FEW_UNITS:
                intervals[name] = too_few(confidence, are_groups=units is not None)
                del values[name]
        if values:
            # the kinds stand for the units here: what is summed up is what one of each brings
            drawn = Units(np.arange(len(times)), times, grouped=units is not None)
            evidence = gather_evidence(Sums(drawn, brings, _ratios), values, most=_RESAMPLES, seed=seed)
            intervals.update({name: one.interval(confidence) for name, one in evidence.items()})
        found.append({name: intervals[name] for name in _NEEDS})
    return found


def _proportions(counts: np.ndarray, confidence: float) -> dict[str, Interval]:
    """Returns Wilson's intervals out of hits, examples and predictions of a class."""
    found = {}
    for name, trials in (("precision", counts[_PREDICTIONS]), ("recall", counts[_EXAMPLES])):
        if trials:
            found[name] = Interval(confidence, *wilson(int(counts[_HITS]), int(trials), confidence), "wilson")
    return found


def _kinds(predictions: Any, metrics: Metrics, units: Units | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields for each class what a unit of each kind brings, int64 of shape [3, kinds], and how many units it has."""
    for number, confusion in enumerate(metrics.confusion):
        if units is not None:
            yield _kinds_of_groups(*_column(predictions, number), units)
            continue
        if metrics.problem == SINGLE_LABEL.name:
            hits, support, predicted = confusion[number], confusion.sum(), metrics.confusion[:, number].sum()
        else:
            hits, support, predicted = confusion[1, 1], confusion[1].sum(), confusion[:, 1].sum()
        others = len(predictions.label) - support - predicted + hits
        times = np.array([hits, support - hits, predicted - hits, others], dtype=np.int64)
        yield _ALONE[:, times > 0], times[times > 0]


def _column(predictions: Any, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns which examples are of a class, and which were predicted to be, bool of shape [n] each."""
    if predictions.label.ndim == 1:
        return predictions.label == number, predictions.prediction == number
    return predictions.label[:, number], predictions.prediction[:, number]


def _kinds_of_groups(label: np.ndarray, given: np.ndarray, units: Units) -> tuple[np.ndarray, np.ndarray]:
    columns = [np.bincount(units.kind_of[which], minlength=units.kinds) for which in (label & given, label, given)]
    touched = np.flatnonzero(columns[_EXAMPLES] + columns[_PREDICTIONS])
    brings, times = np.unique(np.stack(columns)[:, touched], axis=1, return_counts=True)
    others = units.kinds - len(touched)
    if not others:
        return brings, times
    return np.concatenate([brings, np.zeros((3, 1), dtype=np.int64)], axis=1), np.append(times, others)


def _ratios(sums: np.ndarray) -> dict[str, np.ndarray]:
    hits, support, predicted = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"precision": hits / predicted, "recall": hits / support, "f1": 2 * hits / (support + predicted)}


def _of_outputs(
    predictions: Any,
    metrics: Metrics,
    whole: Mapping[str, Interval],
    confidence: float,
    units: Units | None,
    seed: int,
) -> list[dict[str, Interval]]:
    if len(metrics.per_class) == 1:
        return [{name: whole[name] for name in FIGURES}]
    label, prediction = predictions.label, predictions.prediction
    found, values = [], {}
    for number, row in enumerate(metrics.per_class):
        reasons = {"spearman": _ONLY_THE_MEAN, **why_undefined(label[:, number], prediction[:, number])}
        found.append({name: Interval(confidence, reason=reason) for name, reason in reasons.items()})
        values.update({f"{number}/{name}": row[name] for name in FIGURES if name not in reasons})
    statistic = statistic_of_outputs(predictions, units or Units.single(len(label)))
    for name, evidence in gather_evidence(statistic, values, most=_RESAMPLES, seed=seed).items():
        output, figure = name.split("/")
        found[int(output)][figure] = evidence.interval(confidence)
    return [{name: intervals[name] for name in FIGURES} for intervals in found]
