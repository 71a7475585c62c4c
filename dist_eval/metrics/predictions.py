"""`Predictions`, the samples of a classification or regression, and the proof of coverage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from dist_eval.errors import CoverageError
from dist_eval.petals.base_model.problem_types import (
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    Problem,
    log_sums,
    problem_of,
    shifted,
    sigmoid,
)
from dist_eval.results.inputs import Coverage
from dist_eval.tables import format_count

_NAMED_AT_MOST = 10
_CELLS_IN_A_CHUNK = 1 << 18


@dataclass(frozen=True)
class Predictions:
    """A model's predictions for some examples, as columns.

    Attributes:
        index: position in the dataset, int64 of shape [n].
        label: true class, int64 of shape [n]; in a multi-label problem the labels, bool of shape [n, num_labels]; in
            a regression the true values, float64 of shape [n, num_labels]. The dtype thus identifies the problem type.
        logits: outputs of the head, float32 of shape [n, num_labels]; None if predictions were saved without them.
        loss: loss of each example (see `dist_eval.petals.base_model.problem_types`), float64 of shape [n].
        group: the group (cluster) of each example, of shape [n] and any sortable dtype; None if examples are
            independent. Intervals and tests then resample whole groups (see `dist_eval.statistics.metric_intervals`).
        saved_prediction: `prediction` as read from a file; None to compute it from the logits.
        saved_probabilities: `probabilities`, likewise.
    """

    index: np.ndarray
    label: np.ndarray
    logits: np.ndarray | None
    loss: np.ndarray
    group: np.ndarray | None = None
    saved_prediction: np.ndarray | None = field(default=None, repr=False)
    saved_probabilities: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        rows = len(self.index)
        if self.logits is None:
            has_probabilities = self.saved_probabilities is not None or self.problem is REGRESSION
            if self.saved_prediction is None or not has_probabilities:
                raise ValueError("predictions without logits need saved predictions, and probabilities of classes")
        layout: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
            "index": ((rows,), np.int64),
            "label": (self.problem.label_shape(rows, self.num_labels), self.problem.dtype),
            "saved_prediction": (self.problem.label_shape(rows, self.num_labels), self.problem.dtype),
            "logits": ((rows, self.num_labels), np.float32),
            "saved_probabilities": ((rows, self.num_labels), np.float64),
            "loss": ((rows,), np.float64),
        }
        for name, (shape, dtype) in layout.items():
            column = getattr(self, name)
            if column is not None and (column.dtype != dtype or column.shape != shape):
                raise ValueError(f"{name} must be {np.dtype(dtype)} of shape {list(shape)}, not {column!r}")
        if self.group is not None and self.group.shape != (rows,):
            raise ValueError(f"group must have the shape {[rows]}, not {list(self.group.shape)}")

    @classmethod
    def from_logits(
        cls, index: np.ndarray, label: np.ndarray, logits: np.ndarray, problem: Problem = SINGLE_LABEL
    ) -> Predictions:
        """Builds predictions from a model's outputs; the loss is computed in float64, whatever the logits' dtype.

        Args:
            index: positions in the dataset, integers of shape [n].
            label: true labels, of the problem type's shape and dtype; classes are in 0..num_labels-1.
            logits: floats of shape [n, num_labels].
            problem: the problem type.
        """
        logits = np.ascontiguousarray(logits, dtype=np.float32)
        label = np.asarray(label, dtype=problem.dtype)
        return cls(np.asarray(index, dtype=np.int64), label, logits, problem.loss(logits, label))

    @classmethod
    def from_answers(cls, index: np.ndarray, label: np.ndarray, answers: np.ndarray) -> Predictions:
        """Builds predictions from the answers of a classification head.

        Args:
            index: positions in the dataset, integers of shape [n].
            label: true labels; their dtype identifies the problem type.
            answers: of shape [n], with the columns `dist_eval.data.answers.logits_columns`.
        """
        return cls.from_logits(index, label, answers["logits"], problem_of(label.dtype))

    @classmethod
    def empty(cls, num_labels: int, problem: Problem = SINGLE_LABEL) -> Predictions:
        """Builds predictions without examples, with the usual dtypes and width."""
        label = np.empty(problem.label_shape(0, num_labels))
        return cls.from_logits(np.empty(0), label, np.empty((0, num_labels)), problem)

    @classmethod
    def concatenate(cls, parts: Sequence[Predictions]) -> Predictions:
        """Joins predictions in the order given: at least one, all of the same width, problem type and columns."""
        names = parts[0].columns.keys()
        if any(part.columns.keys() != names for part in parts):
            raise ValueError("only predictions with the same columns can be joined")
        return replace(parts[0], **{name: np.concatenate([part.columns[name] for part in parts]) for name in names})

    def __len__(self) -> int:
        return len(self.index)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The fields by name, without those that are None."""
        every = {own.name: getattr(self, own.name) for own in fields(self)}
        return {name: column for name, column in every.items() if column is not None}

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        outputs = self.logits if self.logits is not None else self.saved_probabilities
        return int((self.label if outputs is None else outputs).shape[-1])

    @property
    def problem(self) -> Problem:
        """The problem type."""
        return problem_of(self.label.dtype)

    @property
    def prediction(self) -> np.ndarray:
        """Predicted labels, of the labels' shape and dtype.

        The class with the largest logit (the first of a tie); in a multi-label problem the labels with a probability
        above 1/2; in a regression the logits.
        """
        return self.problem.predict(self._logits) if self.saved_prediction is None else self.saved_prediction

    @property
    def probabilities(self) -> np.ndarray:
        """Softmax of the logits, in a multi-label problem their sigmoid; float64 of shape [n, num_labels]."""
        saved = self.saved_probabilities
        return self.problem.probabilities(self._logits) if saved is None else saved

    @property
    def _logits(self) -> np.ndarray:
        if self.logits is None:
            raise ValueError("the predictions were saved without logits")
        return self.logits

    def probabilities_of(self, classes: Iterable[int]) -> Iterator[np.ndarray]:
        """Yields columns of `probabilities` one at a time, float64 of shape [n] each."""
        if self.saved_probabilities is not None:
            yield from (self.saved_probabilities[:, number] for number in classes)
            return
        logits = self._logits
        if self.problem is MULTI_LABEL:
            yield from (sigmoid(logits[:, number]) for number in classes)
            return
        largest = logits.max(axis=1).astype(np.float64)
        sums = np.concatenate([log_sums(shifted(chunk._logits)) for chunk in self.chunks()])
        for number in classes:
            yield np.exp(logits[:, number] - largest - sums)

    def at(self, places: np.ndarray | slice) -> Predictions:
        """Returns some predictions, by their rows here: copies, or views for a slice."""
        return replace(self, **{name: column[places] for name, column in self.columns.items()})

    def in_groups(self, group: np.ndarray | None) -> Predictions:
        """Returns the same predictions with another `group`."""
        return replace(self, group=group)

    def with_classes(self, order: Sequence[int]) -> Predictions:
        """Renumbers the classes, labels or outputs: the current number `order[i]` becomes number i."""
        changes: dict[str, Any] = {name: column[:, order] for name, column in self.columns.items() if column.ndim > 1}
        if self.problem is SINGLE_LABEL:
            numbers = np.argsort(order)
            changes |= {
                name: numbers[column] for name, column in self.columns.items() if name in ("label", "saved_prediction")
            }
        return replace(self, **changes)

    def chunks(self) -> Iterator[Predictions]:
        """Yields the predictions in chunks of bounded size, for computations that need much memory per row."""
        step = rows_of_a_chunk(self.num_labels)
        for start in range(0, len(self), step):
            yield self.at(slice(start, start + step))


def rows_of_a_chunk(outputs: int) -> int:
    """Returns the number of predictions per chunk, for a number of outputs."""
    return max(1, _CELLS_IN_A_CHUNK // max(1, outputs))


def prove_coverage(
    index: np.ndarray, expected: int, failed: Iterable[int] = (), rows: np.ndarray | None = None
) -> Coverage:
    """Proves that the positions are exactly 0..expected-1 except the failed ones, each once, in any order.

    Args:
        index: positions in the dataset, int64 of shape [n].
        expected: number of examples in the dataset.
        failed: positions of examples that failed with a reason.
        rows: the expected positions if only some rows of the dataset were evaluated, ascending, int64 of shape
            [expected].

    Returns:
        The coverage, which is exact except for the failed examples.

    Raises:
        CoverageError: a position is repeated, missing, or outside the dataset; the message names the first ones.

    Examples:
        >>> prove_coverage(np.array([2, 0, 1]), expected=3).exact
        True
        >>> prove_coverage(np.array([1, 0, 0]), expected=2)
        Traceback (most recent call last):
        dist_eval.errors.CoverageError: The predictions do not cover the dataset's 2 rows: 1 repeated (0).
    """
    places, is_outside = index, (index < 0) | (index >= expected)
    if rows is not None:
        places = np.searchsorted(rows, index)
        is_outside = np.append(rows, -1)[places] != index
    outside = index[is_outside]
    inside = places[~is_outside] if len(outside) else places
    is_seen = np.zeros(expected, dtype=bool)
    is_seen[inside] = True
    given_up = np.unique(np.fromiter(failed, dtype=np.int64))
    given_up = given_up if rows is None else np.searchsorted(rows, given_up)
    seen = int(is_seen.sum())
    both, is_seen[given_up] = given_up[is_seen[given_up]], True
    missing = np.flatnonzero(~is_seen)
    # counting takes eight times the memory of marking, and is needed only to name repeated positions
    repeated = np.flatnonzero(np.bincount(inside) > 1) if len(inside) > seen else inside[:0]
    coverage = Coverage(
        expected=expected, seen=seen, duplicates=len(inside) - seen, missing=expected - seen, failed=len(given_up)
    )
    wrong = {"repeated": repeated, "missing": missing, "failed and predicted": both}
    if rows is not None:
        wrong = {what: rows[found] for what, found in wrong.items()}
    problems = [
        f"{len(found)} {what} ({', '.join(map(str, found[:_NAMED_AT_MOST]))}"
        + (", ...)" if len(found) > _NAMED_AT_MOST else ")")
        for what, found in {**wrong, "outside the dataset": outside}.items()
        if len(found)
    ]
    if problems:
        message = f"The predictions do not cover the dataset's {format_count(expected, 'row')}: {'; '.join(problems)}."
        raise CoverageError(message, coverage)
    return coverage
