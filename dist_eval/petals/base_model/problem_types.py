"""Problem types: their labels, predictions, probabilities and losses. Free of side effects.

The names are those of `problem_type` in a Hugging Face config, and the losses are transformers' training losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_eval.errors import CheckpointError

_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class Problem:
    """A problem type."""

    name: str  # as in `problem_type`
    dtype: type[np.generic]  # dtype of labels
    is_wide: bool  # whether a label has a value per output of the head, instead of the number of one output
    # logits float32 [n, outputs] and labels → loss of each example, float64 [n]
    loss: Callable[[np.ndarray, np.ndarray], np.ndarray]
    predict: Callable[[np.ndarray], np.ndarray]  # logits → predictions, of the labels' shape and dtype
    probabilities: Callable[[np.ndarray], np.ndarray]  # logits → float64 [n, outputs]

    def label_shape(self, rows: int, outputs: int) -> tuple[int, ...]:
        """Returns the shape of labels."""
        return (rows, outputs) if self.is_wide else (rows,)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the softmax of each row, float64 of the same shape."""
    return np.exp(_log_softmax(logits))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Returns the logistic function of each value, float64 of the same shape."""
    return np.exp(-np.logaddexp(0.0, -logits.astype(np.float64)))


def shifted(logits: np.ndarray) -> np.ndarray:
    """Returns logits minus the maximum of each row, so that exponentials neither overflow nor underflow together."""
    less = logits.astype(np.float64)
    less -= less.max(axis=1, keepdims=True, initial=-np.inf)
    return less


def log_sums(less: np.ndarray) -> np.ndarray:
    """Returns the logarithm of each row's sum of exponentials, float64 of shape [n]."""
    return np.log(np.exp(less).sum(axis=1))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    less = shifted(logits)
    less -= log_sums(less)[:, np.newaxis]
    return less


def cross_entropy(logits: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Computes the loss of each example in nats, as `torch.nn.CrossEntropyLoss(reduction="none")` does, in float64."""
    return -_log_softmax(logits)[np.arange(len(label)), label]


def binary_cross_entropy(logits: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Computes the mean over the labels in nats, as `torch.nn.BCEWithLogitsLoss` does for a single example."""
    values = logits.astype(np.float64)
    return np.logaddexp(0.0, np.where(label, -values, values)).mean(axis=1)


def squared_error(logits: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Computes the mean over the outputs, as `torch.nn.MSELoss` does for a single example."""
    return ((logits.astype(np.float64) - label) ** 2).mean(axis=1)


def _no_probabilities(logits: np.ndarray) -> np.ndarray:
    raise ValueError("the outputs of a regression are not probabilities")


SINGLE_LABEL = Problem(
    "single_label_classification",
    np.int64,
    is_wide=False,
    loss=cross_entropy,
    predict=lambda logits: logits.argmax(axis=1).astype(np.int64, copy=False),  # the first of a tie
    probabilities=softmax,
)
MULTI_LABEL = Problem(
    "multi_label_classification",
    np.bool_,
    is_wide=True,
    loss=binary_cross_entropy,
    predict=lambda logits: logits > 0,  # a probability above 1/2
    probabilities=sigmoid,
)
REGRESSION = Problem(
    "regression",
    np.float64,
    is_wide=True,
    loss=squared_error,
    predict=lambda logits: logits.astype(np.float64),
    probabilities=_no_probabilities,
)
PROBLEMS = {problem.name: problem for problem in (SINGLE_LABEL, MULTI_LABEL, REGRESSION)}


def exact_matches(label: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """Returns whether each prediction is correct, in a multi-label problem in all labels.

    Labels and predictions of a classifier are int64 of shape [n] or bool of shape [n, labels]; the result is bool of
    shape [n].
    """
    same = np.equal(label, prediction)
    return np.all(same, axis=1) if same.ndim > 1 else same


def problem_of(dtype: np.dtype) -> Problem:
    """Returns the problem type of labels with a dtype; integers of any width are class numbers.

    Raises `ValueError` if no problem type has labels of this dtype.
    """
    known = {"i": SINGLE_LABEL, "u": SINGLE_LABEL, "b": MULTI_LABEL, "f": REGRESSION}
    if dtype.kind not in known:
        raise ValueError(f"labels cannot be {dtype}")
    return known[dtype.kind]


def default_problem(num_labels: int) -> Problem:
    """Returns the problem type that `transformers` assumes for a config without `problem_type`, given class numbers."""
    return REGRESSION if num_labels == 1 else SINGLE_LABEL


def named(numbers: np.ndarray, names: Sequence[str], one: str = "class", several: str = "classes") -> str:
    """Lists the names of classes for a message, only the first if there are many."""
    shown = ", ".join(repr(names[number]) for number in numbers[:_NAMED_AT_MOST])
    shown += ", ..." if len(numbers) > _NAMED_AT_MOST else ""
    return f"{one} {shown}" if len(numbers) == 1 else f"{several} {shown}"


MAX_CLASSES = 1_000_000
"""Maximum width of a head, because transformers creates a name for each class of a config."""


def require_plausible_width(raw: Mapping[str, Any], where: str) -> None:
    """Rejects the raw content of a `config.json` whose names of classes would fill the memory."""
    count = raw.get("num_labels")
    if isinstance(count, int | float) and count > MAX_CLASSES:
        raise CheckpointError(f"{where}: num_labels is {count}, but a head may have at most {MAX_CLASSES} classes.")


def class_names(id2label: Mapping[Any, Any] | None, count: int, where: str) -> list[str]:
    """Returns the names of the classes 0 to `count` - 1.

    `id2label` is a config's field: names by number, which may be text; empty for default names. It must not name other
    classes.
    """
    if not id2label:
        return [f"LABEL_{number}" for number in range(count)]
    names = {str(number): name for number, name in id2label.items()}
    if names.keys() != {*map(str, range(count))}:
        raise CheckpointError(
            f"{where}: id2label must name the classes 0 to {count - 1}, but names "
            f"{', '.join(list(names)[:5])}{', ...' if len(names) > 5 else ''}."
        )
    return [str(names[str(number)]) for number in range(count)]


def problem_from(name: Any, num_labels: int, where: str) -> Problem:
    """Returns the problem that a config's `problem_type` names; None means the `default_problem` of transformers."""
    if name is None:
        return default_problem(num_labels)
    if not isinstance(name, str) or name not in PROBLEMS:
        raise CheckpointError(f"{where}: problem_type must be one of {', '.join(PROBLEMS)}, not {name!r:.80}.")
    return PROBLEMS[name]
