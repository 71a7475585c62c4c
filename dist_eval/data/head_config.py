"""What a model's config says about its classification head: the names of the classes, and the problem type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dist_eval.data.problem_types import PROBLEMS, Problem, default_problem
from dist_eval.errors import CheckpointError

MAX_CLASSES = 1_000_000
"""Widest head that is read: transformers makes a name for each class that a config announces."""


def require_plausible_width(raw: Mapping[str, Any], where: str) -> None:
    """Checks that a config announces no head that would fill the memory with names of classes.

    Args:
        raw: the content of `config.json`.
        where: the file, for the message.

    Raises:
        CheckpointError: it does.
    """
    count = raw.get("num_labels")
    if isinstance(count, int | float) and count > MAX_CLASSES:
        raise CheckpointError(f"{where}: num_labels is {count}, and a head may have {MAX_CLASSES} classes at most.")


def class_names(id2label: Mapping[Any, Any] | None, count: int, where: str) -> list[str]:
    """Returns the names of the classes 0 to `count` - 1.

    Args:
        id2label: a config's field: names by number, which may be text; empty for default names.
        count: number of classes.
        where: the config, for the message.

    Raises:
        CheckpointError: it names other classes.
    """
    if not id2label:
        return [f"LABEL_{number}" for number in range(count)]
    names = {str(number): name for number, name in id2label.items()}
    if names.keys() != {*map(str, range(count))}:
        raise CheckpointError(
            f"{where}: id2label should name the classes 0 to {count - 1}, and names "
            f"{', '.join(list(names)[:5])}{', ...' if len(names) > 5 else ''}."
        )
    return [str(names[str(number)]) for number in range(count)]


def problem_from(name: Any, num_labels: int, where: str) -> Problem:
    """Returns the problem that a config's `problem_type` names.

    Args:
        name: its value; None means the default of `transformers` (see `default_problem`).
        num_labels: width of the head.
        where: the config, for the message.

    Raises:
        CheckpointError: there is no such problem.
    """
    if name is None:
        return default_problem(num_labels)
    if not isinstance(name, str) or name not in PROBLEMS:
        raise CheckpointError(f"{where}: problem_type {name!r:.80} is none of {', '.join(PROBLEMS)}.")
    return PROBLEMS[name]
