"""Ranking metrics as statistics: areas under ROC curves, and average precisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dist_eval.statistics.resampling import Statistic, influence_of, most_resamples_of_calls
from dist_eval.statistics.units import Units

Columns = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
"""Yields for each class which examples belong to it, bool of shape [n], and its scores, float64 of shape [n]."""


@dataclass(frozen=True)
class _RocCurve:
    """The ROC curve of one class against the rest.

    Attributes:
        positive: positions of the positives, the examples of the class.
        negative: positions of the negatives, in ascending order of their scores.
        below: for each positive, the number of negatives with a lower score.
        upto: for each positive, the number of negatives with a lower or equal score.
    """

    positive: np.ndarray
    negative: np.ndarray
    below: np.ndarray
    upto: np.ndarray

    @classmethod
    def of(cls, is_positive: np.ndarray, scores: np.ndarray) -> _RocCurve:
        positive, negative = np.flatnonzero(is_positive), np.flatnonzero(~is_positive)
        negative = negative[np.argsort(scores[negative], kind="stable")]
        below, upto = (np.searchsorted(scores[negative], scores[positive], side) for side in ("left", "right"))
        return cls(positive, negative, below, upto)

    def areas(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the area and the number of positives in each resample, for weights of shape [n, resamples]."""
        counted = np.zeros((len(self.negative) + 1, weights.shape[1]))
        np.cumsum(weights[self.negative], axis=0, out=counted[1:])
        positive = weights[self.positive]
        wins = np.einsum("ij,ij->j", positive, counted[self.below])
        wins += np.einsum("ij,ij->j", positive, counted[self.upto])
        number = positive.sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return wins / (2 * number * counted[-1]), number

    def areas_without_each(self) -> np.ndarray:
        """Returns the area without each example in turn, float64 of shape [n]."""
        positives, negatives = len(self.positive), len(self.negative)
        wins = (self.below + self.upto) / 2
        # a negative loses to each positive with a higher score, and a tie counts half
        ends = np.bincount(self.below, minlength=negatives + 1) + np.bincount(self.upto, minlength=negatives + 1)
        losses = positives - np.cumsum(ends)[:negatives] / 2
        left = np.empty(positives + negatives)
        with np.errstate(divide="ignore", invalid="ignore"):
            left[self.positive] = (wins.sum() - wins) / ((positives - 1) * np.float64(negatives))
            left[self.negative] = (wins.sum() - losses) / (positives * np.float64(negatives - 1))
        return left


@dataclass(frozen=True)
class _PrecisionCurve:
    """Precision and recall of one class against the rest, by threshold.

    Attributes:
        order: positions of the examples by descending score.
        is_positive: which of them belong to the class, in this order.
        last: the last occurrence of each distinct score in this order.
    """

    order: np.ndarray
    is_positive: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, is_positive: np.ndarray, scores: np.ndarray) -> _PrecisionCurve:
        order = np.argsort(-scores, kind="stable")
        return cls(order, is_positive[order], np.flatnonzero(np.append(np.diff(scores[order]) != 0, True)))

    def areas(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns average precision and number of positives in each resample, for weights of shape [n, resamples]."""
        drawn = weights[self.order]
        counted = np.cumsum(drawn, axis=0)[self.last]
        positive = np.cumsum(drawn * self.is_positive[:, np.newaxis], axis=0)[self.last]
        with np.errstate(divide="ignore", invalid="ignore"):
            precision = np.where(counted > 0, positive / counted, 0)
            found = (np.diff(positive, axis=0, prepend=0) * precision).sum(axis=0) / positive[-1]
        return found, positive[-1]


class _AverageAreas(Statistic):
    """The area under a curve of each class, averaged over the classes.

    Args:
        units: the resampling units.
        columns: the scores of each class.
        classes: number of columns.
        names: names of the mean and of the mean weighted by support; a single name for a single area.
    """

    bounds = (0.0, 1.0)
    _curve: type[_RocCurve] | type[_PrecisionCurve]

    def __init__(self, units: Units, columns: Columns, classes: int, names: tuple[str, ...]) -> None:
        self.names, self.units, self._columns, self._classes = names, units, columns, classes
        self._curves: list[_RocCurve | _PrecisionCurve] = []

    @property
    def work(self) -> int:
        """See `Statistic.work`."""
        return self.units.work + self._classes * len(self.units.kind_of)

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`; the first call caches the sort orders of the scores."""
        self._curves = self._curves or [self._curve.of(*column) for column in self._columns()]
        of_examples = weights if self.units.are_examples else weights[self.units.kind_of]
        areas, numbers = (np.stack(parts) for parts in zip(*(c.areas(of_examples) for c in self._curves), strict=True))
        with np.errstate(invalid="ignore"):
            averages = areas.mean(axis=0), (areas * numbers).sum(axis=0) / numbers.sum(axis=0)
        return dict(zip(self.names, averages, strict=False))


class AreasUnderCurves(_AverageAreas):
    """The area under the ROC curve of a binary classifier, or the one-vs-rest averages over several classes.

    Args:
        units: the resampling units.
        columns: the scores of the positive class, or of each class.
        classes: number of columns.
        names: names of the mean and of the mean weighted by support; a single name for a single area.
    """

    _curve = _RocCurve

    def influence(self) -> dict[str, np.ndarray]:
        """See `Statistic.influence`; class by class, so that only a few columns are in memory at a time.

        The influence of a group is the sum of its examples' influences, as in the infinitesimal jackknife.
        """
        examples = len(self.units.kind_of)
        plain, weighted = np.zeros(examples), np.zeros(examples)
        for is_positive, scores in self._columns():
            left = _RocCurve.of(is_positive, scores).areas_without_each()
            plain += left / self._classes
            weighted += left * (is_positive.sum() - is_positive) / max(1, examples - 1)
        alone = Units.single(examples)
        found = {}
        for name, left_out in zip(self.names, (plain, weighted), strict=False):
            influence = influence_of(left_out, alone)
            if not self.units.are_examples:
                influence = np.bincount(self.units.kind_of, influence) * (self.units.kinds / examples)
            found[name] = influence
        return found


class AveragePrecisions(_AverageAreas):
    """The averages over labels of the average precision.

    Average precision is Σ (Rₖ - Rₖ₋₁) Pₖ over the thresholds, as in `sklearn.metrics.average_precision_score`. There is
    no jackknife, which would take a pass over the scores for each example.
    """

    _curve = _PrecisionCurve

    def __init__(self, units: Units, columns: Columns, classes: int, names: tuple[str, ...]) -> None:
        super().__init__(units, columns, classes, names)
        self.most_resamples = most_resamples_of_calls(units)  # each resample sums all scores of all labels
