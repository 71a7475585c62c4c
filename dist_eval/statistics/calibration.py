"""Calibration with confidence intervals: its metrics as statistics, and the section `calibration` of `results.json`.

The plug-in estimate of the expected calibration error is biased upwards by a term of the order √(bins / n), and each
resample adds the same bias again (R. Roelofs and others 2022, "Mitigating bias in calibration error estimation",
AISTATS, 4036-4054). No bootstrap interval corrects that: for a well calibrated classifier it seldom contains the true
value. So the error has a reason instead of an interval, and each bin of the reliability diagram has an interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dist_eval.metrics.calibration import BINS, EDGES, Bins, Confidences, bins_of
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.results.scores import Calibration, CalibrationBin, Interval, LabelCalibration
from dist_eval.statistics.evidence import gather_evidence
from dist_eval.statistics.intervals import too_few, wilson_interval
from dist_eval.statistics.resampling import Statistic, Sums
from dist_eval.statistics.units import FEW_UNITS, Units

_PARTS_OF_A_BIN = 16
_BIASED = "biased upwards in resamples; see the bins of the reliability diagram"


def statistics_of_calibration(predictions: PredictionsLike, units: Units | None = None) -> Iterator[Statistic]:
    """Yields expected calibration error and Brier score as statistics.

    Args:
        predictions: at least one example.
        units: the resampling units; by default single examples, which are binned by confidence and score if there are
            many.
    """
    if predictions.label.ndim > 1:
        yield from _of_labels(predictions, units or Units.single(len(predictions.label)))
        return
    confidences = Confidences.of_classes(predictions)
    yield Sums(units or _alike(confidences), _rows([confidences]), _ece, _BIASED)
    units = units or Units.similar(confidences.brier, confidences.brier)
    yield Sums(units, [confidences.brier, np.ones(len(confidences.brier))], _brier)


def _of_labels(predictions: PredictionsLike, units: Units) -> Iterator[Statistic]:
    mean = np.zeros(len(predictions.label))
    for one in Confidences.of_labels(predictions):
        mean += one.brier / predictions.num_labels
    yield Sums(units, _rows(Confidences.of_labels(predictions)), _ece, _BIASED)
    yield Sums(units, [mean, np.ones(len(mean))], _brier)


def _alike(confidences: Confidences) -> Units:
    """Treats examples as one kind if they are in the same part of a bin and equally right or wrong."""
    number = bins_of(confidences.confidence)
    part = ((confidences.confidence - EDGES[number]) * (BINS * _PARTS_OF_A_BIN)).astype(np.int64)
    part = np.clip(part, 0, _PARTS_OF_A_BIN - 1)
    return Units.alike(number, part, confidences.correct.astype(np.int64)).or_single(confidences.gap)


def _rows(several: Iterable[Confidences]) -> Any:
    """Returns each example's gap in the row of its bin, BINS rows for each label; the last row counts examples."""
    from scipy import sparse

    blocks = [_in_bins(one, one.gap) for one in several]
    return sparse.vstack([*blocks, sparse.csr_array(np.ones((1, blocks[0].shape[1])))])


def _in_bins(confidences: Confidences, values: np.ndarray | None = None) -> Any:
    """Returns each example's value (1 by default) in the row of its bin: sparse, float64 of shape [BINS, n]."""
    from scipy import sparse

    examples = len(confidences.confidence)
    numbers = np.ones(examples) if values is None else values.astype(np.float64)
    return sparse.csr_array((numbers, (bins_of(confidences.confidence), np.arange(examples))), shape=(BINS, examples))


def _ece(sums: np.ndarray) -> dict[str, np.ndarray]:
    labels = (len(sums) - 1) // BINS
    return {"ece": np.abs(sums[:-1]).sum(axis=0) / (sums[-1] * labels)}


def _brier(sums: np.ndarray) -> dict[str, np.ndarray]:
    return {"brier": sums[0] / sums[1]}


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
    if predictions.label.ndim == 1:
        one = Confidences.of_classes(predictions)
        bins = _bins(one, confidence, units, sampling_fraction)
        return Calibration(ece=one.ece(), brier=float(one.brier.mean()), bins=bins, per_label=None)
    per_label = [
        LabelCalibration(
            label=name,
            ece=one.ece(),
            brier=float(one.brier.mean()),
            bins=_bins(one, confidence, units, sampling_fraction),
        )
        for name, one in zip(label_names, Confidences.of_labels(predictions), strict=True)
    ]
    ece, brier = (float(np.mean(values)) for values in zip(*((row.ece, row.brier) for row in per_label), strict=True))
    return Calibration(ece=ece, brier=brier, bins=None, per_label=per_label)


def _bins(
    confidences: Confidences, confidence: float, units: Units | None, sampling_fraction: float
) -> list[CalibrationBin]:
    bins = Bins.of(confidences)
    intervals = _intervals(confidences, bins, confidence, units, sampling_fraction)
    return [
        CalibrationBin(
            low=float(EDGES[number]),
            high=float(EDGES[number + 1]),
            n=int(bins.count[number]),
            mean_confidence=float(bins.confidence[number] / bins.count[number]) if bins.count[number] else None,
            accuracy=float(bins.hits[number] / bins.count[number]) if bins.count[number] else None,
            interval=intervals[number],
        )
        for number in range(BINS)
    ]


def _intervals(
    confidences: Confidences, bins: Bins, confidence: float, units: Units | None, sampling_fraction: float
) -> list[Interval]:
    """Returns an interval for the accuracy of each bin."""
    from scipy import sparse

    found = [Interval(confidence=confidence, reason="no examples")] * BINS
    filled = np.flatnonzero(bins.count)
    if units is None:
        for number in filled:
            found[number] = wilson_interval(bins.hits[number], bins.count[number], confidence, sampling_fraction)
        return found
    statistic = Sums(units, sparse.vstack([_in_bins(confidences, confidences.correct), _in_bins(confidences)]), _shares)
    values = {str(number): float(bins.hits[number] / bins.count[number]) for number in filled}
    for name, evidence in gather_evidence(statistic, values).items():
        found[int(name)] = evidence.interval(confidence, sampling_fraction)
    inside = sparse.csr_array((np.ones(len(units.kind_of)), (bins_of(confidences.confidence), units.kind_of)))
    for number in np.flatnonzero(np.diff(inside.indptr) < FEW_UNITS):
        if bins.count[number]:
            found[number] = too_few(confidence, are_groups=True)
    return found


def _shares(sums: np.ndarray) -> dict[str, np.ndarray]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return {str(number): sums[number] / sums[BINS + number] for number in range(BINS)}
