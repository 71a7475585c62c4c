"""`Predictions`: the one noun that flows from the forwards to the report, and the proof that it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dist_eval.errors import CoverageError

_NAMED_AT_MOST = 10


@dataclass(frozen=True)
class Predictions:
    """What the model said about some examples, as columns.

    Attributes:
        index: position in the dataset, int64 of shape [n].
        label: true class, int64 of shape [n].
        logits: the head's outputs, float32 of shape [n, num_labels].
        loss: cross-entropy in nats, float64 of shape [n].
    """

    index: np.ndarray
    label: np.ndarray
    logits: np.ndarray
    loss: np.ndarray

    def __post_init__(self) -> None:
        n = len(self.index)
        expected = {"index": (np.int64, 1), "label": (np.int64, 1), "logits": (np.float32, 2), "loss": (np.float64, 1)}
        for name, (dtype, ndim) in expected.items():
            column = getattr(self, name)
            if column.dtype != dtype or column.ndim != ndim or len(column) != n:
                raise ValueError(f"{name} should be {np.dtype(dtype)} with {ndim} axes and {n} rows, not {column!r}")

    @classmethod
    def from_logits(cls, index: np.ndarray, label: np.ndarray, logits: np.ndarray) -> Predictions:
        """Makes predictions from a model's outputs; the loss is computed in float64, whatever the logits' dtype.

        Args:
            index: positions in the dataset, integers of shape [n].
            label: true classes in 0..num_labels-1, integers of shape [n].
            logits: floats of shape [n, num_labels].

        Returns:
            Predictions for these examples.
        """
        logits = np.ascontiguousarray(logits, dtype=np.float32)
        label = np.asarray(label, dtype=np.int64)
        return cls(np.asarray(index, dtype=np.int64), label, logits, cross_entropy(logits, label))

    @classmethod
    def empty(cls, num_labels: int) -> Predictions:
        """Makes predictions of no example, with the dtypes and the width of any others."""
        return cls.from_logits(np.empty(0), np.empty(0), np.empty((0, num_labels)))

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        """Joins predictions in the order given.

        Args:
            parts: at least one; all of the same width.
        """
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        return self.logits.shape[1]

    @property
    def prediction(self) -> np.ndarray:
        """Predicted class, the first of equal ones, int64 of shape [n]."""
        return self.logits.argmax(axis=1).astype(np.int64)

    @property
    def probabilities(self) -> np.ndarray:
        """Softmax of the logits, float64 of shape [n, num_labels]."""
        return np.exp(_log_softmax(self.logits))

    def in_dataset_order(self) -> Predictions:
        """Returns the same predictions sorted by their position in the dataset."""
        order = np.argsort(self.index, kind="stable")
        return Predictions(*(getattr(self, name)[order] for name in self.__dataclass_fields__))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def cross_entropy(logits: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Computes the loss of each example, as `torch.nn.CrossEntropyLoss(reduction="none")` does, in float64.

    Args:
        logits: floats of shape [n, num_labels].
        label: classes in 0..num_labels-1, int64 of shape [n].

    Returns:
        Loss in nats, float64 of shape [n].
    """
    return -_log_softmax(logits)[np.arange(len(label)), label]


@dataclass(frozen=True)
class Coverage:
    """How often the examples of a dataset were counted.

    Attributes:
        expected: examples in the dataset.
        seen: distinct examples of the dataset that have a prediction.
        duplicates: predictions beyond the first of their example.
        missing: examples without a prediction.
        failed: examples that were given up with a reason (part of `missing`).
    """

    expected: int
    seen: int
    duplicates: int
    missing: int
    failed: int = 0

    @property
    def exact(self) -> bool:
        """Whether every example counts exactly once."""
        return self.seen == self.expected and self.duplicates == 0 and self.missing == 0


def prove_coverage(index: np.ndarray, expected: int) -> Coverage:
    """Proves that the positions are exactly 0..expected-1, each once, in any order.

    Args:
        index: positions in the dataset, int64 of shape [n].
        expected: examples in the dataset.

    Returns:
        The coverage, which is exact.

    Raises:
        CoverageError: a position is repeated, missing, or outside the dataset; the message names the first ones.
    """
    outside = index[(index < 0) | (index >= expected)]
    counts = np.bincount(index[(index >= 0) & (index < expected)], minlength=expected)
    repeated, missing = np.flatnonzero(counts > 1), np.flatnonzero(counts == 0)
    coverage = Coverage(
        expected=expected,
        seen=int((counts > 0).sum()),
        duplicates=int((counts[repeated] - 1).sum()),
        missing=len(missing),
    )
    problems = [
        f"{len(rows)} {what} ({', '.join(map(str, rows[:_NAMED_AT_MOST]))}"
        + (", ...)" if len(rows) > _NAMED_AT_MOST else ")")
        for what, rows in (("repeated", repeated), ("missing", missing), ("outside the dataset", outside))
        if len(rows)
    ]
    if problems:
        message = f"The predictions do not cover the dataset's {expected} rows: {'; '.join(problems)}."
        raise CoverageError(message, coverage)
    return coverage
