"""Calibration of a classifier: its errors, and the bins of the reliability diagram with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dist_eval.metrics.calibration import BINS, EDGES, Confidences
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.statistic import Sums
from dist_eval.metrics.units import FEW_UNITS, Units
from dist_eval.results.scores import Calibration, CalibrationBin, Interval, LabelCalibration
from dist_eval.statistics.evidence import bootstrap_intervals
from dist_eval.statistics.intervals import too_few, wilson_interval


def compute_calibration(
    predictions: Predictions, label_names: Sequence[str], *, confidence: float = 0.95, sampling_fraction: float = 0.0
) -> Calibration:
    """Returns the section `calibration` of `results.json`.

    Args:
        predictions: a classifier's predictions, at least one example.
        label_names: names of the classes or labels.
        confidence: confidence level of the bins' intervals, which are Wilson's, or with groups the bootstrap's if the
            bin has enough groups.
        sampling_fraction: see `metric_intervals`.

    Returns:
        The calibration, with `bins` in a single-label problem and `per_label` in a multi-label one.
    """
    units = None if predictions.group is None else Units.groups(predictions.group)
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
