"""Calibration: whether a classifier is right as often as its probabilities say. Free of side effects.

In a single-label problem, the confidence of an example is the probability of the predicted class, and it is compared
with whether the prediction is correct. In a multi-label problem each label is a binary problem: its probability is
compared with whether the example has the label, and metrics are means over the labels.

Expected calibration error: M. P. Naeini, G. F. Cooper and M. Hauskrecht (2015), "Obtaining well calibrated
probabilities using Bayesian binning", AAAI 29, 2901-2907; with bins of equal width, as in C. Guo, G. Pleiss, Y. Sun and
K. Q. Weinberger (2017), "On calibration of modern neural networks", ICML 34, 1321-1330. As a sum of
absolute values it is positive by chance alone: of the order √(bins / n) for n examples of a perfectly calibrated
classifier.

Brier score: G. W. Brier (1950), "Verification of forecasts expressed in terms of probability", Monthly Weather Review
78, 1-3: the sum over the classes of (probability - outcome)², from 0 to 2. For two classes that is twice the default
of `sklearn.metrics.brier_score_loss`; for a label of a multi-label problem, a single probability, it is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dist_eval.metrics.predictions import PredictionsLike

BINS = 15
"""Bins of equal width from 0 to 1, the number that Guo and others use."""

EDGES = np.linspace(0.0, 1.0, BINS + 1)
"""Edges of the bins; a value on an edge belongs to the lower bin, as in `sklearn.calibration.calibration_curve`."""


def bins_of(probability: np.ndarray) -> np.ndarray:
    """Returns the bin that each probability belongs to, int64 of the same shape."""
    return np.searchsorted(EDGES[1:-1], probability)


@dataclass(frozen=True)
class Confidences:
    """Predicted probabilities and the outcomes.

    Attributes:
        confidence: predicted probability, float64 of shape [n].
        correct: whether the predicted event occurred, bool of shape [n].
        brier: Brier score of each example, float64 of shape [n].
    """

    confidence: np.ndarray
    correct: np.ndarray
    brier: np.ndarray

    @classmethod
    def of_classes(cls, predictions: PredictionsLike) -> Confidences:
        """Collects the probabilities of the predicted classes, in memory class by class (single-label)."""
        label = predictions.label
        confidence, brier = np.zeros(len(label)), np.zeros(len(label))
        classes = range(predictions.num_labels)
        for number, probability in zip(classes, predictions.probabilities_of(classes), strict=True):
            np.maximum(confidence, probability, out=confidence)
            brier += (probability - (label == number)) ** 2
        return cls(confidence, label == predictions.prediction, brier)

    @classmethod
    def of_labels(cls, predictions: PredictionsLike) -> Iterator[Confidences]:
        """Yields the probabilities and outcomes of one label after the other (multi-label)."""
        labels = range(predictions.num_labels)
        for number, probability in zip(labels, predictions.probabilities_of(labels), strict=True):
            correct = predictions.label[:, number]
            yield cls(probability, correct, (probability - correct) ** 2)

    @property
    def gap(self) -> np.ndarray:
        """Outcome minus confidence, float64 of shape [n]."""
        return self.correct - self.confidence

    def ece(self) -> float:
        """Computes the expected calibration error: Σ over the bins of |correct - sum of the confidences| / n."""
        gaps = np.bincount(bins_of(self.confidence), self.gap, minlength=BINS)
        return float(np.abs(gaps).sum() / len(self.confidence))


@dataclass(frozen=True)
class Bins:
    """A reliability diagram: totals of each bin.

    Attributes:
        count: number of examples, int64 of shape [BINS].
        hits: number of correct ones, int64 of shape [BINS].
        confidence: sum of the confidences, float64 of shape [BINS].
    """

    count: np.ndarray
    hits: np.ndarray
    confidence: np.ndarray

    @classmethod
    def of(cls, confidences: Confidences) -> Bins:
        """Bins examples by confidence."""
        number = bins_of(confidences.confidence)
        return cls(
            np.bincount(number, minlength=BINS),
            np.bincount(number[confidences.correct], minlength=BINS),
            np.bincount(number, confidences.confidence, minlength=BINS),
        )


def calibration_metrics(predictions: PredictionsLike) -> dict[str, float | None]:
    """Computes `ece` and `brier`, in a multi-label problem their means over the labels.

    Args:
        predictions: at least one example.
    """
    if predictions.label.ndim == 1:
        parts: Iterable[Confidences] = [Confidences.of_classes(predictions)]
    else:
        parts = Confidences.of_labels(predictions)
    ece, brier = zip(*((part.ece(), float(part.brier.mean())) for part in parts), strict=True)
    return {"ece": float(np.mean(ece)), "brier": float(np.mean(brier))}
