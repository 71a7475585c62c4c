"""Calibration: whether a classifier is right as often as its probabilities say. Pure.

With one class each, the confidence of an example is the probability of the class that was predicted, and what it is
held against is whether that is right. With several labels each, every label is a question of its own: its probability
is held against whether the example has it, and figures are means over the labels.

Expected calibration error: M. P. Naeini, G. F. Cooper and M. Hauskrecht (2015), "Obtaining well calibrated
probabilities using Bayesian binning", AAAI 29, 2901-2907; with bins of equal width, as in C. Guo, G. Pleiss, Y. Sun and
K. Q. Weinberger (2017), "On calibration of modern neural networks", ICML 34, 1321-1330. It is a sum of absolute values,
and so above 0 by chance alone: n examples of a perfectly calibrated classifier give something of the order √(bins / n).

Brier score: G. W. Brier (1950), "Verification of forecasts expressed in terms of probability", Monthly Weather Review
78, 1-3: the sum over the classes of (probability - truth)², from 0 to 2. For two classes that is twice what
`sklearn.metrics.brier_score_loss` gives by default; for each of several labels, a single probability, it is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

BINS = 15
"""Bins of equal width from 0 to 1, the number that Guo and others use."""

EDGES = np.linspace(0.0, 1.0, BINS + 1)
"""Where bins end; a value that is an edge belongs to the bin below, as with `sklearn.calibration.calibration_curve`."""


class Probable(Protocol):
    """What calibration depends on, such as `dist_eval.Predictions`."""

    @property
    def label(self) -> np.ndarray:
        """True class, int64 of shape [n]; or which labels each example has, bool of shape [n, labels]."""

    @property
    def prediction(self) -> np.ndarray:
        """What was predicted, of the same shape and dtype."""

    @property
    def num_labels(self) -> int:
        """Number of classes or labels."""

    def probabilities_of(self, classes: Iterable[int]) -> Iterator[np.ndarray]:
        """Yields the probabilities of some classes, float64 of shape [n] each."""


def bins_of(probability: np.ndarray) -> np.ndarray:
    """Returns the bin that each probability belongs to, int64 of the same shape."""
    return np.searchsorted(EDGES[1:-1], probability)


@dataclass(frozen=True)
class Confidences:
    """What was said with which probability, and whether it was so.

    Attributes:
        confidence: a probability, float64 of shape [n].
        correct: bool of shape [n].
        brier: Brier score of each example, float64 of shape [n].
    """

    confidence: np.ndarray
    correct: np.ndarray
    brier: np.ndarray

    @classmethod
    def of_classes(cls, predictions: Probable) -> Confidences:
        """Takes the probability of what was predicted, of examples with one class each; class by class in memory."""
        label = predictions.label
        confidence, brier = np.zeros(len(label)), np.zeros(len(label))
        classes = range(predictions.num_labels)
        for number, probability in zip(classes, predictions.probabilities_of(classes), strict=True):
            np.maximum(confidence, probability, out=confidence)
            brier += (probability - (label == number)) ** 2
        return cls(confidence, label == predictions.prediction, brier)

    @classmethod
    def of_labels(cls, predictions: Probable) -> Iterator[Confidences]:
        """Yields those of one label after the other, of examples with several labels each."""
        labels = range(predictions.num_labels)
        for number, probability in zip(labels, predictions.probabilities_of(labels), strict=True):
            correct = predictions.label[:, number]
            yield cls(probability, correct, (probability - correct) ** 2)

    @property
    def gap(self) -> np.ndarray:
        """By how much the truth exceeds what was said, float64 of shape [n]."""
        return self.correct - self.confidence

    def ece(self) -> float:
        """Computes the expected calibration error: Σ over the bins of |hits - sum of the confidences| / n."""
        gaps = np.bincount(bins_of(self.confidence), self.gap, minlength=BINS)
        return float(np.abs(gaps).sum() / len(self.confidence))


@dataclass(frozen=True)
class Bins:
    """A reliability diagram: what is in each bin.

    Attributes:
        count: examples, int64 of shape [BINS].
        hits: those of them for which it is so, int64 of shape [BINS].
        confidence: sum of their confidences, float64 of shape [BINS].
    """

    count: np.ndarray
    hits: np.ndarray
    confidence: np.ndarray

    @classmethod
    def of(cls, confidences: Confidences) -> Bins:
        """Sorts examples into bins."""
        number = bins_of(confidences.confidence)
        return cls(
            np.bincount(number, minlength=BINS),
            np.bincount(number[confidences.correct], minlength=BINS),
            np.bincount(number, confidences.confidence, minlength=BINS),
        )


def calibration_figures(predictions: Probable) -> dict[str, float | None]:
    """Computes `ece` and `brier`, for several labels their means over the labels.

    Args:
        predictions: at least one example.
    """
    if predictions.label.ndim == 1:
        parts: Iterable[Confidences] = [Confidences.of_classes(predictions)]
    else:
        parts = Confidences.of_labels(predictions)
    ece, brier = zip(*((part.ece(), float(part.brier.mean())) for part in parts), strict=True)
    return {"ece": float(np.mean(ece)), "brier": float(np.mean(brier))}
