"""Confidence intervals of the metrics of all examples and of each class, and of the bins of the reliability diagram.

The metrics of a class depend on three counts only: true positives, examples (support) and predictions of the class.
Examples, or groups, with the same counts are resampled as one kind (see `units`), class by class; for most of them
all three counts are 0. So resampling a class takes about the same time however many examples and other classes there
are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dist_eval.metrics.calibration import BINS, EDGES, Confidences
from dist_eval.metrics.catalogue import OF_OUTPUT, accuracy_names
from dist_eval.metrics.computing import Metrics, reasons_of_output
from dist_eval.metrics.confusion import ClassCounts, class_totals
from dist_eval.metrics.custom_metrics import CustomMetric, Inputs, custom_results
from dist_eval.metrics.definitions import UNKNOWN, statistic_of_outputs, statistics_of
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.metrics.statistic import OfRows, Statistic, Sums
from dist_eval.metrics.units import FEW_UNITS, SEED, Units
from dist_eval.petals.base_model.problem_types import REGRESSION
from dist_eval.results.scores import Calibration, CalibrationBin, Interval, LabelCalibration
from dist_eval.statistics.evidence import bootstrap_intervals
from dist_eval.statistics.intervals import too_few, wilson_interval

_CLASS_RESAMPLES = 1_999
_CUSTOM_RESAMPLES = 199  # each calls a custom metric, and how long that takes is unknown

# what a class has in common with the examples, or groups, that are resampled: the rows of counts
_HITS, _EXAMPLES, _PREDICTIONS = range(3)

# counts of one example that is a true positive, a false negative, a false positive or a true negative
_SINGLE_COUNTS = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]])

# the count that has to reach `FEW_UNITS` before a metric is bootstrapped
_NEEDS = {"precision": _PREDICTIONS, "recall": _EXAMPLES, "f1": _EXAMPLES}

_UNDEFINED = {"precision": "never predicted", "recall": "no examples", "f1": "no examples, and never predicted"}
_ONLY_THE_MEAN = "only the mean over the outputs is resampled: each output's ranks would take as long again"


def metric_intervals(
    predictions: PredictionsLike,
    metrics: Metrics,
    *,
    confidence: float = 0.95,
    groups: np.ndarray | None = None,
    sampling_fraction: float = 0.0,
    extra_statistics: Sequence[Statistic] = (),
    resamples: int | None = None,
    most: int | None = None,
    seed: int = SEED,
) -> dict[str, Interval]:
    """Computes confidence intervals: Wilson's for proportions, else the bootstrap's from `FEW_UNITS` units on.

    Args:
        predictions: `dist_eval.Predictions`, at least one example.
        metrics: their metrics, from `compute_metrics`.
        confidence: confidence level, between 0 and 1.
        groups: the group (cluster) of each example, of shape [n]. All metrics are then bootstrapped by resampling
            whole groups, proportions too, because Wilson's interval assumes independent examples: C. A. Field and A. H.
            Welsh (2007), "Bootstrapping clustered data", JRSS B 69, 369-390; A. C. Cameron, J. B. Gelbach and D. L.
            Miller (2008), "Bootstrap-based improvements for inference with clustered errors", Review of Economics and
            Statistics 90, 414-427. With few groups intervals would be too narrow, however many examples there are.
        sampling_fraction: share of all rows that is in the random sample which the examples are from, or a part of
            (see `sampling.effective_size`); 0 if the intervals are to be those of independent examples.
        extra_statistics: statistics of metrics that this module does not cover.
        resamples: number of resamples (see `gather_evidence`).
        most: an upper limit of that number, if `resamples` is not given.
        seed: seed of the resampling.

    Returns:
        An interval, or the reason why there is none, by name, in the order of `metrics.values`.

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
    found = {name: Interval(confidence=confidence, reason=reason) for name, reason in metrics.undefined.items()}
    if groups is None:
        for name in accuracy_names(metrics.problem):
            if name in values:
                trials = len(predictions.label)
                found[name] = wilson_interval(round(values[name] * trials), trials, confidence, sampling_fraction)
    drawn = None if groups is None else Units.groups(groups)
    for statistic in (*statistics_of(predictions, drawn), *extra_statistics):
        wanted = {name: values[name] for name in statistic.names if name in values and name not in found}
        if wanted:
            found |= bootstrap_intervals(
                statistic, wanted, confidence, sampling_fraction, resamples=resamples, most=most, seed=seed
            )
    unknown = Interval(confidence=confidence, reason=UNKNOWN)
    return {name: found.get(name, unknown) for name in metrics.values}


def statistics_of_functions(
    metrics: Sequence[CustomMetric], predictions: PredictionsLike, units: Units
) -> list[OfRows]:
    """Returns custom metrics as statistics, given resampling units that are single examples or groups."""
    if not metrics:  # probabilities take much memory
        return []
    inputs = Inputs.of(predictions)
    return [_statistic(metric, inputs, units) for metric in metrics]


def _statistic(metric: CustomMetric, inputs: Inputs, units: Units) -> OfRows:
    @functools.lru_cache(maxsize=1)
    def values(positions: bytes) -> Mapping[str, float | None]:
        return custom_results([metric], inputs.rows(np.frombuffer(positions, dtype=np.int64))).values

    everything = values(np.arange(len(inputs)).tobytes())
    names = {name: (lambda positions, name=name: values(positions.tobytes()).get(name)) for name in everything}
    statistic = OfRows(units, names)
    statistic.most_resamples = _CUSTOM_RESAMPLES
    return statistic


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
        >>> for name, interval in yes.items():
        ...     print(f"{name} {interval.low:.3f} {interval.high:.3f} {interval.method}")
        precision 0.959 1.000 wilson
        recall 0.826 0.945 wilson
        f1 0.908 0.975 bca
    """
    units = None if groups is None else Units.groups(groups)
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


def _kinds_of_groups(predictions: PredictionsLike, units: Units) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the same of groups of examples."""
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
        is_involved = counts.any(axis=0)  # most groups are not: sorting them would take long
        kinds, sizes = np.unique(counts[:, is_involved], axis=1, return_counts=True)
        others = units.kinds - is_involved.sum()
        if others:
            kinds, sizes = np.pad(kinds, ((0, 0), (0, 1))), np.append(sizes, others)
        yield kinds, sizes


def _metrics_of_class(sums: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[0] for name, values in ClassCounts.of_classes(sums).of_each.items()}


def _intervals_of_outputs(
    predictions: PredictionsLike,
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


def compute_calibration(
    predictions: PredictionsLike,
    label_names: Sequence[str],
    *,
    confidence: float = 0.95,
    groups: np.ndarray | None = None,
    sampling_fraction: float = 0.0,
) -> Calibration:
    """Returns the section `calibration` of `results.json`.

    Args:
        predictions: a classifier's predictions, at least one example.
        label_names: names of the classes or labels.
        confidence: confidence level of the bins' intervals, which are Wilson's, or with groups the bootstrap's if the
            bin has enough groups.
        groups: the group (cluster) of each example, of shape [n] (see `metric_intervals`).
        sampling_fraction: see `metric_intervals`.

    Returns:
        The calibration, with `bins` in a single-label problem and `per_label` in a multi-label one.
    """
    units = None if groups is None else Units.groups(groups)
    parts: list[dict[str, Any]] = [
        {
            "ece": confidences.error(),
            "brier": float(confidences.brier.mean()),
            "bins": _bins(confidences, confidence, units, sampling_fraction),
        }
        for confidences in Confidences.from_predictions(predictions)
    ]
    if predictions.label.ndim == 1:
        return Calibration(**parts[0], per_label=None)
    per_label = [LabelCalibration(label=name, **part) for name, part in zip(label_names, parts, strict=True)]
    ece, brier = (float(np.mean([part[name] for part in parts])) for name in ("ece", "brier"))
    return Calibration(ece=ece, brier=brier, bins=None, per_label=per_label)


def _bins(
    confidences: Confidences, confidence: float, units: Units | None, sampling_fraction: float
) -> list[CalibrationBin]:
    number_of, correct = confidences.bins, confidences.correct
    count, hits = (np.bincount(number_of[which], minlength=BINS) for which in (slice(None), correct))
    total = np.bincount(number_of, confidences.confidence, minlength=BINS)
    by_groups = {} if units is None else _intervals_by_groups(number_of, correct, units, confidence, sampling_fraction)
    bins = []
    for number in range(BINS):
        n = int(count[number])
        interval = Interval(confidence=confidence, reason="no examples")
        if n:
            interval = by_groups.get(number) or wilson_interval(hits[number], n, confidence, sampling_fraction)
        bins.append(
            CalibrationBin(
                low=float(EDGES[number]),
                high=float(EDGES[number + 1]),
                n=n,
                mean_confidence=float(total[number] / n) if n else None,
                accuracy=float(hits[number] / n) if n else None,
                interval=interval,
            )
        )
    return bins


def _intervals_by_groups(
    number_of: np.ndarray, correct: np.ndarray, units: Units, confidence: float, sampling_fraction: float
) -> dict[int, Interval]:
    """Returns the bootstrap intervals of the accuracy in each bin that has examples."""
    from scipy import sparse

    examples = np.arange(len(number_of))
    hits, ones = (
        sparse.csr_array((values.astype(np.float64), (number_of, examples)), shape=(BINS, len(examples)))
        for values in (correct, np.ones(len(examples)))
    )
    accuracies = Sums(units, sparse.vstack([hits, ones]), _accuracies)
    values = {name: value for name, value in accuracies.observed().items() if not np.isnan(value)}
    intervals = {}
    for name, interval in bootstrap_intervals(accuracies, values, confidence, sampling_fraction).items():
        number = int(name)
        has_few = len(np.unique(units.kind_of[number_of == number])) < FEW_UNITS
        intervals[number] = too_few(confidence, are_groups=True) if has_few else interval
    return intervals


def _accuracies(sums: np.ndarray) -> dict[str, np.ndarray]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return {str(number): sums[number] / sums[BINS + number] for number in range(BINS)}
