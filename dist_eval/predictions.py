"""`Predictions`: the one noun that flows from the forwards to the report, and the proof that it is complete.

Before examples are combined, they come in batches: what became of one is a `BatchOutcome`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_eval.errors import CoverageError

_DTYPES: dict[str, type[np.generic]] = {
    "index": np.int64,
    "label": np.int64,
    "logits": np.float32,
    "loss": np.float64,
}
_NAMED_AT_MOST = 10
_CELLS_IN_A_PIECE = 1 << 18


@dataclass(frozen=True)
class BatchOutcome:
    """What became of a batch.

    Attributes:
        batch: its number in the plan.
        logits: float32 of shape [rows, num_labels]; rows of failed examples are not finite.
        route: the servers that computed it: name, first block, one past the last block. Empty without a swarm.
        failed: why examples have no prediction, by their row in the batch.
        audit: what an audit has found (see `dist_eval.audit.Findings.to_notes`), None if there was none.
    """

    batch: int
    logits: np.ndarray
    route: Sequence[tuple[str, int, int]] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    audit: Mapping[str, Any] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all examples have a prediction."""
        return not self.failed


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
        for name, dtype in _DTYPES.items():
            column, ndim = getattr(self, name), 2 if name == "logits" else 1
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
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _DTYPES))

    @classmethod
    def unpacked(cls, columns: Mapping[str, np.ndarray]) -> Predictions:
        """Makes predictions from what `packed` returned."""
        return cls(*(columns[name].astype(dtype, copy=False) for name, dtype in _DTYPES.items()))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        return self.logits.shape[1]

    @property
    def prediction(self) -> np.ndarray:
        """Predicted class, the first of equal ones, int64 of shape [n]."""
        return self.logits.argmax(axis=1).astype(np.int64, copy=False)

    @property
    def probabilities(self) -> np.ndarray:
        """Softmax of the logits, float64 of shape [n, num_labels]."""
        return np.exp(_log_softmax(self.logits))

    def probabilities_of(self, classes: Iterable[int]) -> Iterator[np.ndarray]:
        """Yields columns of `probabilities` one after the other, float64 of shape [n] each."""
        largest = self.logits.max(axis=1).astype(np.float64)
        log_sums = np.concatenate([_log_sums(_shifted(piece.logits)) for piece in self.pieces()])
        for number in classes:
            yield np.exp(self.logits[:, number] - largest - log_sums)

    def rows(self, start: int, stop: int) -> Predictions:
        """Returns some consecutive predictions, without copying them."""
        return Predictions(*(getattr(self, name)[start:stop] for name in _DTYPES))

    def pieces(self) -> Iterator[Predictions]:
        """Cuts the predictions into pieces of bounded size, for what takes much memory for each of them."""
        step = max(1, _CELLS_IN_A_PIECE // self.num_labels)
        for start in range(0, len(self), step):
            yield self.rows(start, start + step)

    def in_dataset_order(self) -> Predictions:
        """Returns the same predictions sorted by their position in the dataset."""
        order = np.argsort(self.index, kind="stable")
        return Predictions(*(getattr(self, name)[order] for name in _DTYPES))

    def packed(self) -> dict[str, np.ndarray]:
        """Returns the columns for a journey to another rank: integers in the smallest dtype that holds them."""
        return {name: _narrowed(getattr(self, name)) for name in _DTYPES}


class Collector:
    """Columns of known length that predictions are put into piece by piece, so that nothing is held twice.

    Args:
        rows: how many predictions will come.
        num_labels: width of the head.
    """

    def __init__(self, rows: int, num_labels: int) -> None:
        self._rows, self._filled = rows, 0
        self._columns = {
            name: np.empty((rows, num_labels) if name == "logits" else rows, dtype=dtype)
            for name, dtype in _DTYPES.items()
        }

    def add(self, part: Predictions) -> None:
        """Takes some predictions over, after those that came before.

        Raises:
            ValueError: they are more than were announced.
        """
        begin, end = self._filled, self._filled + len(part)
        if end > self._rows:
            raise ValueError(f"{end} predictions came where {self._rows} were announced")
        for name, column in self._columns.items():
            column[begin:end] = getattr(part, name)
        self._filled = end

    def predictions(self) -> Predictions:
        """Returns the predictions that have come, in the order in which they came."""
        return Predictions(**self._columns).rows(0, self._filled)

    def in_dataset_order(self) -> Predictions:
        """Sorts what has come by its position in the dataset and returns it; the collector is used up."""
        order = np.argsort(self._columns["index"][: self._filled], kind="stable")
        return Predictions(*(self._columns.pop(name)[order] for name in _DTYPES))


def _narrowed(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind != "i":
        return column
    limits = column.min(initial=0), column.max(initial=0)
    return column.astype(np.result_type(*map(np.min_scalar_type, limits)))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = _shifted(logits)
    shifted -= _log_sums(shifted)[:, np.newaxis]
    return shifted


def _shifted(logits: np.ndarray) -> np.ndarray:
    """Returns logits less the largest of each row, so that their exponentials neither overflow nor all vanish."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True, initial=-np.inf)
    return shifted


def _log_sums(shifted: np.ndarray) -> np.ndarray:
    return np.log(np.exp(shifted).sum(axis=1))


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


def prove_coverage(index: np.ndarray, expected: int, failed: Iterable[int] = ()) -> Coverage:
    """Proves that the positions are exactly 0..expected-1 without the failed ones, each once, in any order.

    Args:
        index: positions in the dataset, int64 of shape [n].
        expected: examples in the dataset.
        failed: positions of examples that were given up with a reason.

    Returns:
        The coverage, which is exact but for the failed ones.

    Raises:
        CoverageError: a position is repeated, missing, or outside the dataset; the message names the first ones.
    """
    is_outside = (index < 0) | (index >= expected)
    outside = index[is_outside]
    inside = index[~is_outside] if len(outside) else index
    is_seen = np.zeros(expected, dtype=bool)
    is_seen[inside] = True
    given_up = np.unique(np.fromiter(failed, dtype=np.int64))
    seen = int(is_seen.sum())
    both, is_seen[given_up] = given_up[is_seen[given_up]], True
    missing = np.flatnonzero(~is_seen)
    # counting takes eight times the memory of marking, and is only needed to name what was counted twice
    repeated = np.flatnonzero(np.bincount(inside) > 1) if len(inside) > seen else inside[:0]
    coverage = Coverage(expected, seen, duplicates=len(inside) - seen, missing=expected - seen, failed=len(given_up))
    problems = [
        f"{len(rows)} {what} ({', '.join(map(str, rows[:_NAMED_AT_MOST]))}"
        + (", ...)" if len(rows) > _NAMED_AT_MOST else ")")
        for what, rows in (
            ("repeated", repeated),
            ("missing", missing),
            ("failed and predicted", both),
            ("outside the dataset", outside),
        )
        if len(rows)
    ]
    if problems:
        message = f"The predictions do not cover the dataset's {expected} rows: {'; '.join(problems)}."
        raise CoverageError(message, coverage)
    return coverage
