"""Totals: sums over examples that are computed twice, from each rank's predictions and from all of them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_eval.errors import ExactnessError
from dist_eval.metrics.confusion import confusion_matrix
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import REGRESSION, exact_matches

_LOSS_TOLERANCE = 1e-9
_CLASSES_IN_MESSAGE = 20


@dataclass(frozen=True)
class Totals:
    """Sums over examples, which can be added over batches and ranks."""

    counts: np.ndarray  # examples and correct examples (all labels correct; 0 in a regression), int64 of shape [2]
    confusion: Any  # see `confusion_matrix`
    loss: np.ndarray  # sum of the losses, float64 of shape [1]
    # in a regression, sums of the absolute and of the squared errors, float64 of shape [outputs, 2]; else [0, 2]
    errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))

    @classmethod
    def of(cls, predictions: Predictions) -> Totals:
        """Computes the totals of predictions, possibly of no example."""
        problem, outputs, correct = predictions.problem, predictions.num_labels, 0
        errors = np.zeros((outputs if problem is REGRESSION else 0, 2))
        if problem is REGRESSION:
            for chunk in predictions.chunks():
                apart = np.abs(chunk.prediction - chunk.label)
                errors += np.stack([apart.sum(axis=0), (apart**2).sum(axis=0)], axis=1)
        else:
            correct = int(exact_matches(predictions.label, predictions.prediction).sum())
        return cls(
            counts=np.asarray([len(predictions), correct], dtype=np.int64),
            confusion=confusion_matrix(predictions),
            loss=np.asarray([predictions.loss.sum()], dtype=np.float64),
            errors=errors,
        )

    @property
    def samples(self) -> int:
        """Number of examples."""
        return int(self.counts[0])

    @property
    def accuracy(self) -> float | None:
        """Fraction of correct examples, None without any; meaningless in a regression."""
        return int(self.counts[1]) / self.samples if self.samples else None

    @property
    def mean_loss(self) -> float | None:
        """Mean of the losses, None without examples."""
        return float(self.loss[0]) / self.samples if self.samples else None


def require_same_totals(reduced: Totals, gathered: Totals) -> None:
    """Checks that two ways to compute totals agree: all_reduce of the ranks' totals, and the gathered examples.

    Counts must be equal, and sums equal up to rounding error; otherwise it raises ExactnessError.
    """
    for name, agree in (
        ("counts", np.array_equal),
        ("confusion", lambda one, other: one.shape == other.shape and not (one - other).nonzero()[0].size),
        ("loss", _are_close),
        ("errors", _are_close),
    ):
        sums, others = getattr(reduced, name), getattr(gathered, name)
        if not agree(sums, others):
            raise ExactnessError(
                f"The {name} do not agree: all_reduce gives {_described(sums)}, "
                f"the gathered examples give {_described(others)}. No metric was computed."
            )


def _described(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return str(values.tolist())
    is_small = values.shape[0] <= _CLASSES_IN_MESSAGE
    return str(values.toarray().tolist()) if is_small else " ".join(str(values).split())


def _are_close(sums: np.ndarray, others: np.ndarray) -> bool:
    """Returns whether sums in different orders differ only by rounding; equal infinities compare equal."""
    return sums.shape == others.shape and np.allclose(sums, others, rtol=_LOSS_TOLERANCE, atol=_LOSS_TOLERANCE)
