"""Metrics over documents as statistics: means, as for generated texts, and the harness' functions of means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dist_eval.metrics.statistic import Sums
from dist_eval.metrics.units import Units
from dist_eval.results.scores import Interval
from dist_eval.statistics.evidence import bootstrap_intervals
from dist_eval.statistics.intervals import wilson_interval

# the reason for a metric without a statistic
NO_MEAN = "the metric is not a function of a mean over documents"

# name of every statistic of `document_statistic`
VALUE = "value"

_SAME = 1e-9
Form = Callable[[np.ndarray], np.ndarray]

# the harness' aggregations as functions of the mean of documents' values (log-likelihoods in nats, except for a plain
# mean), or, for weighted documents, of the ratio of the sums of values and weights
FORMS: dict[str, Form] = {
    "mean": lambda mean: mean,
    "perplexity": lambda mean: np.exp(-mean),
    "weighted_perplexity": lambda mean: np.exp(-mean),
    "bits_per_byte": lambda mean: -mean / math.log(2),
}

_WEIGHTED = ("weighted_perplexity", "bits_per_byte")


def find_form(values: Sequence[Any], value: float | None, aggregation: str | None) -> Form | None:
    """Finds the function that computes a metric from documents' values.

    Args:
        values: a number for each document, or a number and a weight, such as a number of bytes.
        value: the metric, None if undefined.
        aggregation: name of the harness' function that aggregates the values, None for any other.

    Returns:
        The function of the mean; None if there is none.
    """
    form, addends = FORMS.get(aggregation or ""), _addends(values, weighted=aggregation in _WEIGHTED)
    if form is None or addends is None or value is None:
        return None
    with np.errstate(over="ignore"):
        same = math.isclose(float(form(_ratio(addends.sum(axis=1)))), value, rel_tol=_SAME, abs_tol=_SAME)
    return form if same else None


def document_statistic(values: Sequence[Any], form: Form, groups: np.ndarray | None = None) -> Sums:
    """Returns a metric as a statistic named "value" over documents.

    Args:
        values: see `find_form`.
        form: see `find_form`.
        groups: the group (cluster) of each document, of shape [n]; None if they are independent.
    """
    units = Units.of(len(values), groups)
    weighted = np.ndim(values[0]) == 1
    return Sums(units, _addends(values, weighted=weighted), lambda sums: {VALUE: form(_ratio(sums))})


def _addends(values: Sequence[Any], *, weighted: bool) -> np.ndarray | None:
    """Returns numerators and denominators of documents' values, float64 of shape [2, n]; None without numbers."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if not found.size or not np.isfinite(found).all():
        return None
    if weighted:
        return found.T if found.ndim == 2 and found.shape[1] == 2 else None
    return np.stack([found, np.ones(len(found))]) if found.ndim == 1 else None


def document_interval(
    values: Sequence[Any],
    value: float | None,
    aggregation: str | None,
    confidence: float,
    *,
    is_share: bool = False,
    groups: np.ndarray | None = None,
    sampling_fraction: float = 0.0,
    most: int | None = None,
) -> Interval:
    """Computes the interval of a metric over documents: Wilson's for a proportion without groups, else the bootstrap's.

    Args:
        values: see `find_form`.
        value: the metric, None where undefined.
        aggregation: see `find_form`.
        confidence: confidence level.
        is_share: whether the values are 0 or 1 by definition; others may be so by chance.
        groups: see `document_statistic`.
        sampling_fraction: fraction of all documents in the random sample (see `metric_intervals`).
        most: maximum number of resamples.
    """
    form = find_form(values, value, aggregation)
    if form is None or value is None:
        return Interval(confidence=confidence, reason="undefined" if value is None else NO_MEAN)
    if groups is None and is_share:
        return wilson_interval(round(float(np.sum(values))), len(values), confidence, sampling_fraction)
    statistic = document_statistic(values, form, groups)
    return bootstrap_intervals(statistic, {VALUE: value}, confidence, sampling_fraction, most=most)[VALUE]


def _ratio(sums: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[0] / sums[1]
