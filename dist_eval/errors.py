"""The errors that a user can act on: one sentence that names the culprit and says what to do."""

from __future__ import annotations

import sys

__all__ = [
    "CheckpointError",
    "ConfigError",
    "CoverageError",
    "DataError",
    "EvaluationError",
    "ExactnessError",
    "LostRankError",
    "ModelOutputError",
    "OutageError",
    "RefusedError",
    "RunError",
    "RunStopped",
    "SwarmError",
]


class EvaluationError(Exception):
    """Base of all errors that `dist_eval` raises on purpose; its text is shown to the user as it stands.

    Attributes:
        transient: whether the same command may get further although nobody changes anything.
    """

    transient = False


class ConfigError(EvaluationError):
    """An option is missing, unknown, out of range, or contradicts another one."""


class DataError(EvaluationError):
    """The dataset cannot be read, or a row of it cannot be evaluated."""


class CheckpointError(EvaluationError):
    """The base model or the tuned checkpoint is incomplete, damaged, or made for something else."""


class SwarmError(EvaluationError):
    """The swarm cannot be reached, misses blocks, or does not answer within the time set."""

    transient = True


class RefusedError(SwarmError):
    """Servers answered that they cannot do what was asked: asking again would not help."""

    transient = False


class OutageError(SwarmError):
    """Some blocks have no server any more: whatever is sent would fail."""


class ModelOutputError(EvaluationError):
    """The model answered with something that is no prediction, such as non-finite logits."""


class ExactnessError(EvaluationError):
    """Something that must agree does not: coverage, a total computed in two ways, or the ranks with each other."""


class CoverageError(ExactnessError):
    """The predictions do not cover the dataset exactly once.

    Args:
        message: what is wrong.
        coverage: the counts, a `dist_eval.metrics.predictions.Coverage`.
    """

    def __init__(self, message: str, coverage: object) -> None:
        super().__init__(message)
        self.coverage = coverage


class RunError(EvaluationError):
    """The run's folder or the group of ranks is in a state in which the run cannot go on."""


class LostRankError(RunError):
    """Another rank, or the store that torchrun keeps, is not heard of any more."""

    transient = True


class RunStopped(EvaluationError):
    """The run was asked to stop before its end; what is done is in its journal.

    Args:
        message: why, and how far it came.
        coverage: the counts, a `dist_eval.metrics.predictions.Coverage`.
    """

    def __init__(self, message: str, coverage: object) -> None:
        super().__init__(message)
        self.coverage = coverage


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or its type where it has none."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def print_error(message: str) -> None:
    """Prints an error for a person, on standard error."""
    print(f"dist_eval: {message}", file=sys.stderr, flush=True)
