"""Confidence intervals of the metrics of all examples."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from dist_eval.metrics.catalogue import accuracy_names
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.custom_metrics import CustomMetric, MetricInputs, custom_results
from dist_eval.metrics.definitions import UNKNOWN, statistics_of
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.statistic import OfRows, Statistic
from dist_eval.metrics.units import SEED, Units
from dist_eval.results.scores import Interval
from dist_eval.statistics.evidence import bootstrap_intervals
from dist_eval.statistics.intervals import wilson_interval

_CUSTOM_RESAMPLES = 199  # each calls a custom metric, which may be slow


def metric_intervals(
    predictions: Predictions,
    metrics: Metrics,
    *,
    confidence: float = 0.95,
    sampling_fraction: float = 0.0,
    extra_statistics: Sequence[Statistic] = (),
    resamples: int | None = None,
    most: int | None = None,
    seed: int = SEED,
) -> dict[str, Interval]:
    """Computes confidence intervals: Wilson's for proportions, else the bootstrap's with at least `FEW_UNITS` units.

    Args:
        predictions: at least one example. If they have groups, all metrics are bootstrapped by resampling whole
            groups, proportions too, because Wilson's interval assumes independent examples: C. A. Field and A. H.
            Welsh (2007), "Bootstrapping clustered data", JRSS B 69, 369-390; A. C. Cameron, J. B. Gelbach and D. L.
            Miller (2008), "Bootstrap-based improvements for inference with clustered errors", Review of Economics and
            Statistics 90, 414-427. With few groups intervals would be too narrow, however many examples there are.
        metrics: their metrics, from `compute_metrics`.
        confidence: confidence level, between 0 and 1.
        sampling_fraction: fraction of all rows in the random sample that the examples are from (see
            `sampling.effective_size`); 0 for intervals of independent examples.
        extra_statistics: statistics of metrics that this module does not cover.
        resamples: number of resamples (see `gather_evidence`).
        most: maximum number of resamples, if `resamples` is not given.
        seed: seed of the resampling.

    Returns:
        An interval or the reason for its absence, by name, in the order of `metrics.values`.

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
    if predictions.group is None:
        for name in accuracy_names(metrics.problem):
            if name in values:
                trials = len(predictions.label)
                found[name] = wilson_interval(round(values[name] * trials), trials, confidence, sampling_fraction)
    drawn = None if predictions.group is None else Units.groups(predictions.group)
    for statistic in (*statistics_of(predictions, drawn), *extra_statistics):
        wanted = {name: values[name] for name in statistic.names if name in values and name not in found}
        if wanted:
            found |= bootstrap_intervals(
                statistic, wanted, confidence, sampling_fraction, resamples=resamples, most=most, seed=seed
            )
    unknown = Interval(confidence=confidence, reason=UNKNOWN)
    return {name: found.get(name, unknown) for name in metrics.values}


def statistics_of_functions(metrics: Sequence[CustomMetric], predictions: Predictions) -> list[OfRows]:
    """Returns custom metrics as statistics; the resampling units are single examples or groups."""
    if not metrics:  # probabilities take much memory
        return []
    inputs, units = MetricInputs.of(predictions), Units.of(len(predictions), predictions.group)
    return [_statistic(metric, inputs, units) for metric in metrics]


def _statistic(metric: CustomMetric, inputs: MetricInputs, units: Units) -> OfRows:
    @functools.lru_cache(maxsize=1)
    def values(positions: bytes) -> Mapping[str, float | None]:
        return custom_results([metric], inputs.rows(np.frombuffer(positions, dtype=np.int64))).values

    everything = values(np.arange(len(inputs)).tobytes())
    names = {name: (lambda positions, name=name: values(positions.tobytes()).get(name)) for name in everything}
    statistic = OfRows(units, names)
    statistic.most_resamples = _CUSTOM_RESAMPLES
    return statistic
