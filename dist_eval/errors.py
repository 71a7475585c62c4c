"""The errors that a user can act on: one sentence that names the cause and says what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = [
    "CheckpointError",
    "ConfigError",
    "CoverageError",
    "DataError",
    "EvaluationError",
    "ExactnessError",
    "LostRankError",
    "ModelOutputError",
    "NoCacheError",
    "OutageError",
    "RefusedError",
    "RunError",
    "RunStopped",
    "SwarmError",
]


class EvaluationError(Exception):
    """Base of all errors that `dist_eval` raises on purpose; its text is shown to the user unchanged.

    Attributes:
        transient: whether the same command may get further although nothing is changed.
    """

    transient = False


class ConfigError(EvaluationError):
    """An option is missing, unknown, out of range, or contradicts another one."""


class DataError(EvaluationError):
    """The dataset cannot be read, or one of its rows cannot be evaluated."""


class CheckpointError(EvaluationError):
    """The base model or the tuned checkpoint is incomplete, damaged, or made for something else."""


class SwarmError(EvaluationError):
    """The swarm cannot be reached, lacks blocks, or does not answer within its time limit."""

    transient = True


class RefusedError(SwarmError):
    """Servers refused a request: sending it again would not help."""

    transient = False


class NoCacheError(SwarmError):
    """No server has room for an attention cache, or takes such large steps; a plain forward may still work."""


class OutageError(SwarmError):
    """Some blocks have no server any more: every request would fail."""


class ModelOutputError(EvaluationError):
    """The model's output is not a prediction, such as non-finite logits."""


class ExactnessError(EvaluationError):
    """An exactness check failed: coverage, totals that are computed twice, or equality of values on all ranks."""


class CoverageError(ExactnessError):
    """The predictions do not cover the dataset exactly once.

    Args:
        message: the error message.
        coverage: the counts, a `dist_eval.Coverage`.
    """

    def __init__(self, message: str, coverage: Any) -> None:
        super().__init__(message)
        self.coverage = coverage


class RunError(EvaluationError):
    """The run's folder, or the group of ranks, is in a state in which the run cannot continue."""


class LostRankError(RunError):
    """Another rank, or torchrun's store, does not respond any more."""

    transient = True


class RunStopped(EvaluationError):
    """The run was asked to stop before its end; finished batches are in its journal.

    Args:
        message: why, and how far the run is.
        coverage: the counts, a `dist_eval.Coverage`.
    """

    def __init__(self, message: str, coverage: object) -> None:
        super().__init__(message)
        self.coverage = coverage


def os_reason(error: Exception) -> str:
    """Returns why the operating system refused something, without the path, which messages name themselves."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def translating_os_errors(kind: type[EvaluationError], what: str, advice: str = "") -> Iterator[None]:
    """Raises what the operating system refuses as an error of this package.

    Args:
        kind: its class.
        what: what could not be done.
        advice: what to do about it, a sentence.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {os_reason(error)}. {advice}".rstrip()) from error


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or its type if it has none."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def print_error(message: str) -> None:
    """Prints an error message to standard error."""
    print(f"dist_eval: {message}", file=sys.stderr, flush=True)
