"""Metrics of the lm-evaluation-harness as statistics: means over documents, and functions of such means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dist_eval.results.scores import Interval
from dist_eval.statistics.evidence import gather_evidence
from dist_eval.statistics.intervals import wilson_interval
from dist_eval.statistics.resampling import Sums
from dist_eval.statistics.units import Units

NO_MEAN = "it is no mean over documents, nor a function of one"
"""The reason of a metric without a statistic."""

_NAME = "value"
_SAME = 1e-9
_FORMS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda mean: mean,
    lambda mean: np.exp(-mean),  # a perplexity, of log-likelihoods in nats
    lambda mean: -mean / math.log(2),  # bits, of the same
)
"""What the harness makes of the mean of documents' values, or of the ratio of the sums of their two values."""


def document_statistic(values: Sequence[Any], value: float) -> Sums | None:
    """Finds how a metric follows from documents' values.

    Args:
        values: of each document: a number, or two of which the second is a weight, such as a number of bytes.
        value: the metric.

    Returns:
        The metric as a statistic over documents; None if it is no function of their mean.
    """
    addends = document_addends(values)
    if addends is None:
        return None

    def statistic(form: Callable[[np.ndarray], np.ndarray]) -> Sums:
        return Sums(Units.single(len(values)), addends, lambda sums: {_NAME: form(_ratio(sums))})

    sums = addends.sum(axis=1)
    for form in _FORMS:
        if math.isclose(float(form(_ratio(sums))), value, rel_tol=_SAME, abs_tol=_SAME):
            return statistic(form)
    return None


def document_addends(values: Sequence[Any]) -> np.ndarray | None:
    """Returns numerators and denominators of documents' values, float64 of shape [2, n]; None without numbers."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if not found.size or not np.isfinite(found).all():
        return None
    if found.ndim == 1:
        return np.stack([found, np.ones(len(found))])
    return found.T if found.ndim == 2 and found.shape[1] == 2 else None


def document_interval(values: Sequence[Any], value: float | None, confidence: float) -> Interval:
    """Computes the interval of a metric over documents: Wilson's for a share, else the bootstrap's.

    Args:
        values: see `document_statistic`.
        value: the metric, None where undefined.
        confidence: confidence level.
    """
    statistic = None if value is None else document_statistic(values, value)
    if statistic is None or value is None:
        return Interval(confidence=confidence, reason="undefined" if value is None else NO_MEAN)
    if is_share(values):
        return wilson_interval(round(float(np.sum(values))), len(values), confidence)
    return gather_evidence(statistic, {_NAME: value})[_NAME].interval(confidence)


def is_share(values: Sequence[Any]) -> bool:
    """Returns whether the values are 0 or 1, as those of an accuracy."""
    return all(isinstance(value, (bool, int, float)) and value in (0, 1) for value in values)


def _ratio(sums: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[0] / sums[1]
