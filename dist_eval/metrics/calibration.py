"""Calibration: whether a classifier is correct as often as its probabilities predict. Free of side effects.

In a single-label problem, the confidence of an example is the probability of the predicted class; the outcome is
whether the prediction is correct. In a multi-label problem each label is a binary problem: the outcome is whether the
example has the label, and metrics are means over the labels.

Expected calibration error: M. P. Naeini, G. F. Cooper and M. Hauskrecht (2015), "Obtaining well calibrated
probabilities using Bayesian binning", AAAI 29, 2901-2907; with bins of equal width, as in C. Guo, G. Pleiss, Y. Sun and
K. Q. Weinberger (2017), "On calibration of modern neural networks", ICML 34, 1321-1330. As a sum of absolute values it
is positive by chance alone, of the order √(bins / n) for n examples of a perfectly calibrated classifier.

Brier score: G. W. Brier (1950), "Verification of forecasts expressed in terms of probability", Monthly Weather Review
78, 1-3: the sum over the classes of (probability - outcome)², from 0 to 2. For two classes it is twice the default of
`sklearn.metrics.brier_score_loss`; for a label of a multi-label problem, the two are equal.

The plug-in estimate of the expected calibration error is biased upwards by a term of the order √(bins / n), and each
resample adds the same bias again (R. Roelofs and others 2022, "Mitigating bias in calibration error estimation",
AISTATS, 4036-4054). No bootstrap interval corrects this: for a well calibrated classifier it seldom contains the true
value. So the error has a reason instead of an interval, and each bin of the reliability diagram has an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.statistic import Statistic
from dist_eval.metrics.units import Units

# bins of equal width from 0 to 1, as in Guo and others
BINS = 15

# edges of the bins; a value on an edge belongs to the lower bin, as in `sklearn.calibration.calibration_curve`
EDGES = np.linspace(0.0, 1.0, BINS + 1)

_BIASED = "biased upwards in resamples; see the bins of the reliability diagram"


@dataclass(frozen=True)
class Confidences:
    """Predicted probabilities and the outcomes."""

    confidence: np.ndarray  # predicted probability, float64 of shape [n]
    correct: np.ndarray  # whether the predicted event occurred, bool of shape [n]
    brier: np.ndarray  # Brier score of each example, float64 of shape [n]

    @classmethod
    def from_predictions(cls, predictions: Predictions) -> Iterator[Confidences]:
        """Yields the confidences of the predicted classes, or in a multi-label problem of each label in turn."""
        label, numbers = predictions.label, range(predictions.num_labels)
        columns = zip(numbers, predictions.probabilities_of(numbers), strict=True)
        if label.ndim > 1:
            for number, probability in columns:
                yield cls(probability, label[:, number], (probability - label[:, number]) ** 2)
            return
        confidence, brier = np.zeros(len(label)), np.zeros(len(label))
        for number, probability in columns:  # all columns at once would take more memory than the predictions
            np.maximum(confidence, probability, out=confidence)
            brier += (probability - (label == number)) ** 2
        yield cls(confidence, label == predictions.prediction, brier)

    @property
    def bins(self) -> np.ndarray:
        """The bin of each example, int64 of shape [n]."""
        return np.searchsorted(EDGES[1:-1], self.confidence)

    def error(self, weights: np.ndarray | float = 1.0) -> float:
        """Computes the expected calibration error: Σ over the bins of |correct - sum of the confidences| / n."""
        gaps = np.bincount(self.bins, weights * (self.correct - self.confidence), minlength=BINS)
        return float(np.abs(gaps).sum() / np.broadcast_to(weights, len(self.confidence)).sum())


class CalibrationError(Statistic):
    """The expected calibration error, in a multi-label problem its mean over the labels."""

    names, no_interval = ("ece",), _BIASED

    def __init__(self, units: Units | Callable[[], Units], confidences: Callable[[], Iterator[Confidences]]) -> None:
        super().__init__(units)
        self._confidences = confidences

    def values(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """See `Statistic.values`."""
        of_examples = weights[self.units.kind_of].T
        errors = [[part.error(drawn) for drawn in of_examples] for part in self._confidences()]
        return {"ece": np.mean(errors, axis=0)}

    def observed(self) -> dict[str, float]:
        """See `Statistic.observed`."""
        return {"ece": float(np.mean([part.error() for part in self._confidences()]))}
