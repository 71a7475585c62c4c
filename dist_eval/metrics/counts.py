"""Sums over examples, from which metrics follow: what the formulas in `catalogue` are functions of.

The last axis of every array are resamples: one column for the data themselves.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_eval.metrics.confusion import class_totals


@dataclass(frozen=True)
class ClassCounts:
    """How often classes or labels occur, are predicted, and both."""

    hits: np.ndarray  # true positives of each class, of shape [classes, resamples]
    support: np.ndarray  # its examples, of this shape
    predicted: np.ndarray  # its predictions, of this shape
    counted: np.ndarray  # whether it counts in a macro average, of this shape
    right: np.ndarray  # correct examples (in a multi-label problem: in all labels), of shape [resamples]
    examples: np.ndarray  # of shape [resamples]
    loss: np.ndarray | None = None  # sum of the losses, of shape [resamples]; only in a multi-label problem

    @classmethod
    def of_classes(cls, sums: np.ndarray) -> ClassCounts:
        """Takes sums of the addends `margins`: macro averages are over the classes that occur or are predicted."""
        hits, support, predicted = sums.reshape(3, len(sums) // 3, -1)
        return cls(hits, support, predicted, support + predicted > 0, hits.sum(axis=0), support.sum(axis=0))

    @classmethod
    def of_labels(cls, sums: np.ndarray) -> ClassCounts:
        """Takes sums of hits, support and predictions of each label, correct examples, losses and examples."""
        hits, support, predicted = sums[:-3].reshape(3, len(sums) // 3 - 1, -1)
        right, loss, examples = sums[-3:]
        return cls(hits, support, predicted, np.ones(hits.shape, dtype=bool), right, examples, loss)

    @classmethod
    def of_matrix(cls, cells: Any) -> ClassCounts:
        """Takes a confusion matrix (see `confusion_matrix`): one column with all classes or labels.

        A matrix of labels does not say how many examples are correct in all of them: that is NaN.
        """
        hits, support, predicted = (column.astype(np.float64)[:, np.newaxis] for column in class_totals(cells))
        examples = np.array([cells.sum() / (len(hits) if cells.ndim == 3 else 1)])
        counted = support + predicted > 0 if cells.ndim == 2 else np.ones(hits.shape, dtype=bool)
        right = hits.sum(axis=0) if cells.ndim == 2 else np.full(1, np.nan)
        return cls(hits, support, predicted, counted, right, examples)

    @functools.cached_property
    def ratios(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Numerator and denominator of the metrics of each class, by name."""
        return {
            "precision": (self.hits, self.predicted),
            "recall": (self.hits, self.support),
            "f1": (2 * self.hits, self.support + self.predicted),
        }

    @functools.cached_property
    def of_each(self) -> dict[str, np.ndarray]:
        """The metrics of each class by name, of shape [classes, resamples]; NaN where undefined."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return {name: above / below for name, (above, below) in self.ratios.items()}

    @property
    def wrong(self) -> np.ndarray:
        """Examples with a class whose prediction is another one, or the reverse, for each class."""
        return self.support + self.predicted - 2 * self.hits

    def mean(self, ratio: str, counted: np.ndarray) -> np.ndarray:
        """Averages one of `OF_CLASS` over some classes."""
        return np.where(counted, self.of_each[ratio], 0).sum(axis=0) / counted.sum(axis=0)

    def macro(self, ratio: str) -> np.ndarray:
        """Averages one of `OF_CLASS` over the classes."""
        return self.mean(ratio, self.counted)

    def weighted(self, ratio: str) -> np.ndarray:
        """Averages one of `OF_CLASS` over the classes, weighted by their examples."""
        total = self.support.sum(axis=0)
        return np.where(self.support > 0, self.support * self.of_each[ratio], 0).sum(axis=0) / total

    def micro(self, ratio: str) -> np.ndarray:
        """Computes one of `OF_CLASS` from the sums over all classes."""
        above, below = self.ratios[ratio]
        return above.sum(axis=0) / below.sum(axis=0)

    def matthews_correlation(self) -> np.ndarray:
        """Computes the correlation between true and predicted class.

        J. Gorodkin (2004), "Comparing two K-category assignments by a K-category correlation coefficient",
        Computational Biology and Chemistry 28, 367-374.
        """
        chance = np.einsum("ij,ij->j", self.support, self.predicted)
        of_labels, of_predictions = (
            self.examples**2 - np.einsum("ij,ij->j", counts, counts) for counts in (self.support, self.predicted)
        )
        return (self.right * self.examples - chance) / np.sqrt(of_labels * of_predictions)


@dataclass(frozen=True)
class ErrorSums:
    """Sums of a regression, of shape [outputs, resamples] but for the last two, which are of shape [resamples]."""

    absolute: np.ndarray  # of the absolute errors
    squared: np.ndarray  # of the squared errors
    y: np.ndarray  # of the labels minus their mean in the data
    x: np.ndarray  # of the outputs minus their mean in the data
    yy: np.ndarray
    xx: np.ndarray
    xy: np.ndarray
    loss: np.ndarray
    examples: np.ndarray

    @classmethod
    def from_sums(cls, sums: np.ndarray) -> ErrorSums:
        """Takes the sums of the addends in this order, of shape [7 * outputs + 2, resamples]."""
        return cls(*sums[:-2].reshape(7, len(sums) // 7, -1), *sums[-2:])

    @functools.cached_property
    def label_spread(self) -> np.ndarray:
        """Sums of the labels' squared deviations from their mean, NaN where they are equal up to rounding."""
        return _deviations(self.yy, self.y, self.examples)

    @functools.cached_property
    def output_spread(self) -> np.ndarray:
        """The same of the outputs."""
        return _deviations(self.xx, self.x, self.examples)

    def pearson_correlation(self) -> np.ndarray:
        """Computes the correlation between label and output."""
        joint_spread = self.xy - self.x * self.y / self.examples
        return np.clip(joint_spread / np.sqrt(self.label_spread * self.output_spread), -1, 1)


def _deviations(squares: np.ndarray, sums: np.ndarray, examples: np.ndarray) -> np.ndarray:
    deviations = squares - sums**2 / examples
    return np.where(deviations > 1e-12 * squares, deviations, np.nan)
