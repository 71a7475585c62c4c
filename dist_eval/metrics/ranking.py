"""Ranking metrics (areas under ROC curves and average precisions) and the scores that rank examples.

Examples are ranked by log-odds, not by probabilities: in float64, these are all 1 above log-odds of 37, and rounding
makes them differ between examples whose logits have the same differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dist_eval.metrics.predictions import Predictions, rows_of_a_chunk
from dist_eval.metrics.statistic import Statistic, influence_of
from dist_eval.metrics.units import Units
from dist_eval.petals.base_model.problem_types import SINGLE_LABEL

# yields for each class whether each example belongs to it, bool of shape [n], and its scores, float64 of shape [n]
Columns = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]


def ranking_scores(predictions: Predictions, classes: Iterable[int]) -> Iterator[np.ndarray]:
    """Yields numbers that rank the examples by their log-odds of each class, of shape [n].

    Predictions saved without logits are ranked by probability.
    """
    logits = predictions.logits
    if logits is None or (predictions.problem is SINGLE_LABEL and predictions.num_labels < 2):
        return predictions.probabilities_of(classes)
    if predictions.problem is SINGLE_LABEL:
        return _ranks_by_log_odds(logits, classes)
    return (logits[:, number] for number in classes)  # the logits of a label are its log-odds


def probabilities_rank_alike(predictions: Predictions) -> bool:
    """Returns whether probabilities rank the examples of each class or label as log-odds do."""
    if not len(predictions):
        return True
    classes = range(predictions.num_labels)
    columns = zip(ranking_scores(predictions, classes), predictions.probabilities_of(classes), strict=True)
    return all(_is_same_order(scores, probabilities) for scores, probabilities in columns)


def _ranks_by_log_odds(logits: np.ndarray, classes: Iterable[int]) -> Iterator[np.ndarray]:
    """Yields the order of the examples by log z_k - log Σ exp z_j over the other classes j.

    Examples tie if their logits have the same differences: these are exact in float64, and sums are over sorted logits.
    Others tie only if they differ by less than float64 keeps beside the largest other class. A remainder keeps the
    digits that a large difference of the two largest logits would absorb.
    """
    first, second, after_first, after_second = _largest(logits)
    gap = np.exp(second - first)
    for number in classes:
        value = _finite(logits[:, number])
        is_first, is_second = value == first, value == second
        margin = value - np.where(is_first, second, first)  # distance to the largest of the others
        rest = np.where(is_second, after_first, gap + after_first - np.exp(value - first))
        remainder = -np.log1p(np.where(is_first, after_second, rest))
        odds = margin + remainder
        part = odds - margin
        lost = (margin - (odds - part)) + (remainder - part)  # rounding error of the sum
        yield _ranks(odds, lost) if lost.any() and _has_ties(odds) else odds


def _largest(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns each row's two largest logits, and the sum of exponentials of all others relative to each of the two."""
    parts = []
    step = rows_of_a_chunk(logits.shape[1])
    for start in range(0, len(logits), step):
        sorted_logits = np.sort(_finite(logits[start : start + step]), axis=1)
        first, second, others = sorted_logits[:, -1], sorted_logits[:, -2], sorted_logits[:, :-2]
        sums = (np.exp(others - largest[:, np.newaxis]).sum(axis=1) for largest in (first, second))
        parts.append(np.stack([first, second, *sums]))
    first, second, after_first, after_second = np.concatenate([np.empty((4, 0)), *parts], axis=1)
    return first, second, after_first, after_second


def _finite(logits: np.ndarray) -> np.ndarray:
    return np.nan_to_num(logits).astype(np.float64)  # the difference of two infinite values would be NaN


def _has_ties(values: np.ndarray) -> bool:
    return bool((np.diff(np.sort(values)) == 0).any())


def _ranks(*keys: np.ndarray) -> np.ndarray:
    """Returns ranks by the first key, with ties broken by the next; equal examples have equal ranks."""
    order = np.lexsort(keys[::-1])
    is_above = np.any([np.diff(key[order], prepend=-np.inf) > 0 for key in keys], axis=0)
    ranks = np.empty(len(order))
    ranks[order] = np.cumsum(is_above)
    return ranks


def _is_same_order(first: np.ndarray, second: np.ndarray) -> bool:
    order = np.argsort(first)
    steps = np.diff(second[order])
    return bool((steps >= 0).all()) and np.array_equal(np.diff(first[order]) > 0, steps > 0)


@dataclass(frozen=True)
class _RocCurve:
    """The ROC curve of one class against the rest."""

    positive: np.ndarray  # positions of the positives, the examples of the class, by ascending score
    negative: np.ndarray  # positions of the negatives, by ascending score
    below: np.ndarray  # for each positive, the number of negatives with a lower score
    upto: np.ndarray  # for each positive, the number of negatives with a lower or equal score

    @classmethod
    def from_scores(cls, is_positive: np.ndarray, scores: np.ndarray) -> _RocCurve:
        """Sorts the scores."""
        positive, negative = (
            positions[np.argsort(scores[positions])] for positions in map(np.flatnonzero, (is_positive, ~is_positive))
        )
        return cls(positive, negative, *_negatives_below(scores[positive], scores[negative]))

    @staticmethod
    def observed(is_positive: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the area and the number of positives with weights of 1: only sorted scores are needed."""
        positive, negative = np.sort(scores[is_positive]), np.sort(scores[~is_positive])
        below, upto = _negatives_below(positive, negative)
        with np.errstate(invalid="ignore"):
            area = np.divide([below.sum() + upto.sum()], 2 * len(positive) * len(negative))
        return area, np.array([len(positive)])

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


def _negatives_below(positive: np.ndarray, negative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts for each positive the negatives with a lower score, and with a lower or equal one, in sorted scores."""
    return np.searchsorted(negative, positive, "left"), np.searchsorted(negative, positive, "right")


@dataclass(frozen=True)
class _PrecisionCurve:
    """Precision and recall of one class against the rest, by threshold."""

    order: np.ndarray  # positions of the examples by descending score
    is_positive: np.ndarray  # whether they belong to the class, in this order
    last: np.ndarray  # the last occurrence of each distinct score in this order

    @classmethod
    def from_scores(cls, is_positive: np.ndarray, scores: np.ndarray) -> _PrecisionCurve:
        """Sorts the scores."""
        order = np.argsort(-scores)  # the order of equal scores does not matter
        return cls(order, is_positive[order], np.flatnonzero(np.append(np.diff(scores[order]) != 0, True)))

    @classmethod
    def observed(cls, is_positive: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the average precision and the number of positives with weights of 1."""
        return cls.from_scores(is_positive, scores).areas(np.ones((len(scores), 1)))

    def areas(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns average precision and number of positives in each resample, for weights of shape [n, resamples]."""
        drawn = weights[self.order]
        counted = np.cumsum(drawn, axis=0)[self.last]
        positive = np.cumsum(drawn * self.is_positive[:, np.newaxis], axis=0)[self.last]
        with np.errstate(divide="ignore", invalid="ignore"):
            precision = np.where(counted > 0, positive / counted, 0)
            areas = (np.diff(positive, axis=0, prepend=0) * precision).sum(axis=0) / positive[-1]
        return areas, positive[-1]


class _AverageAreas(Statistic):
    """The area under a curve of each class, averaged over the classes: arguments as of `AreasUnderCurves`."""

    _curve: type[_RocCurve] | type[_PrecisionCurve]

    def __init__(
        self, units: Units | Callable[[], Units], columns: Columns, classes: int, names: tuple[str, ...]
    ) -> None:
        super().__init__(units)
        self.names, self._columns, self._classes = names, columns, classes
        self._curves: list[_RocCurve | _PrecisionCurve] = []

    @property
    def work(self) -> int:
        """See `Statistic.work`."""
        return self.units.work + self._classes * len(self.units.kind_of)

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`; the first call caches the sort orders of the scores."""
        self._curves = self._curves or [self._curve.from_scores(*column) for column in self._columns()]
        of_examples = weights if self.units.are_examples else weights[self.units.kind_of]
        return self._averages(curve.areas(of_examples) for curve in self._curves)

    def observed(self) -> dict[str, float]:
        """See `Statistic.observed`; has the scores of one class in memory at a time."""
        averages = self._averages(self._curve.observed(*column) for column in self._columns())
        return {name: float(values[0]) for name, values in averages.items()}

    def _averages(self, of_classes: Iterator[tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
        areas, numbers = (np.stack(parts) for parts in zip(*of_classes, strict=True))
        with np.errstate(invalid="ignore"):
            averages = areas.mean(axis=0), (areas * numbers).sum(axis=0) / numbers.sum(axis=0)
        return dict(zip(self.names, averages, strict=False))


class AreasUnderCurves(_AverageAreas):
    """The area under the ROC curve of a binary classifier, or the one-vs-rest averages over several classes.

    It is how often a positive has a higher score than a negative, where a tie counts half.

    Args:
        units: see `Statistic`.
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
        plain, weighted, supports = np.zeros(examples), np.zeros(examples), np.zeros(examples)
        for is_positive, scores in self._columns():
            left = _RocCurve.from_scores(is_positive, scores).areas_without_each()
            plain += left / self._classes
            support = is_positive.sum() - is_positive  # without each example
            weighted += left * support
            supports += support
        weighted /= np.maximum(1, supports)
        alone = Units.single(examples)
        influences = {}
        for name, left_out in zip(self.names, (plain, weighted), strict=False):
            influence = influence_of(left_out, alone)
            if not self.units.are_examples:
                influence = np.bincount(self.units.kind_of, influence) * (self.units.kinds / examples)
            influences[name] = influence
        return influences


class AveragePrecisions(_AverageAreas):
    """The averages over labels of the average precision.

    Average precision is Σ (Rₖ - Rₖ₋₁) Pₖ over the thresholds, as in `sklearn.metrics.average_precision_score`. There is
    no jackknife, which would take a pass over the scores for each example.
    """

    _curve = _PrecisionCurve
