"""Errors that a user can act on: a short message with the cause and the remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from dist_eval.printable import printable_lines

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

_LONGEST = 300  # maximum number of characters of a library's message


class EvaluationError(Exception):
    """Base of all errors that `dist_eval` raises on purpose; the user sees its message unchanged.

    Attributes:
        transient: whether the same command may succeed without changes.
    """

    transient = False


Error = TypeVar("Error", bound=EvaluationError)


class ConfigError(EvaluationError):
    """An option is missing, unknown, out of range, or contradicts another."""


class DataError(EvaluationError):
    """The dataset cannot be read, or one of its rows cannot be evaluated."""


class CheckpointError(EvaluationError):
    """The base model or the tuned checkpoint is incomplete, damaged or unsuitable."""


class SwarmError(EvaluationError):
    """The swarm cannot be reached, lacks blocks, or does not answer within its time limit."""

    transient = True


class RefusedError(SwarmError):
    """Servers refused a request; sending it again would not help."""

    transient = False


class NoCacheError(SwarmError):
    """No server has space for an attention cache or accepts steps of this size; a plain forward may still work."""


class OutageError(SwarmError):
    """Some blocks have lost all servers, so every request would fail."""


class ModelOutputError(EvaluationError):
    """The model's output is not a prediction, such as non-finite logits."""


class NotSentError(Exception):
    """A batch was not sent, because the run was stopped."""


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
    """Another rank or torchrun's store has stopped responding."""

    transient = True


class RunStopped(EvaluationError):
    """The run was stopped before its end; finished batches are in its journal.

    Args:
        message: the reason, and the progress of the run.
        coverage: the counts, a `dist_eval.Coverage`.
    """

    def __init__(self, message: str, coverage: object) -> None:
        super().__init__(message)
        self.coverage = coverage


def with_place(error: Error, place: str) -> Error:
    """Returns a copy of an error, with all its attributes, whose message begins with a place."""
    kind = type(error)
    copied = kind.__new__(kind, f"{place}: {error}")
    copied.__dict__.update(error.__dict__)
    return copied


def os_reason(error: Exception) -> str:
    """Returns the operating system's reason without the path, which messages name themselves."""
    if isinstance(error, FileExistsError):
        return "it is a file, not a folder"
    if isinstance(error, NotADirectoryError):
        return "a part of the path is a file, not a folder"
    return getattr(error, "strerror", None) or one_line(error)


@contextmanager
def translating_os_errors(kind: type[EvaluationError], what: str, advice: str = "") -> Iterator[None]:
    """Turns an `OSError`, or text of a file that is not UTF-8, into an error of this package.

    Args:
        kind: the class of the error.
        what: the failure, such as "FILE cannot be read".
        advice: a sentence on the remedy.
    """
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise kind(f"{what}: {os_reason(error)}. {advice}".rstrip()) from error


def one_line(error: BaseException) -> str:
    """Returns the message of an error in one line of bounded length.

    Libraries put the cause after a colon or a headline, at the end of a quoted traceback, or into the error that this
    one was raised from. The result includes all of it, as far as it fits.
    """
    text, root = _own_text(error), _root(error)
    cause = "" if root is error else _own_text(root)
    return text if cause in text else f"{text} ({cause})"


def error_summary(error: BaseException) -> str:
    """Returns the type and message of an error, because messages of user code may be a single word."""
    name, text = type(error).__name__, one_line(error)
    return text if text.startswith(name) else f"{name}: {text}"


def _root(error: BaseException) -> BaseException:
    """Returns the root cause of an error; errors of this package already name theirs."""
    seen = [error]
    while seen[-1].__cause__ is not None and seen[-1].__cause__ not in seen:
        if isinstance(seen[-1], EvaluationError):
            break
        seen.append(seen[-1].__cause__)
    return seen[-1]


def _own_text(error: BaseException) -> str:
    if getattr(error, "problem", None) and getattr(error, "problem_mark", None):  # PyYAML quotes its input
        return f"{error.problem}, line {error.problem_mark.line + 1}"  # type: ignore[attr-defined]
    text = ""
    for line in _lines(str(error)):
        is_sentence = line[0].isupper() and text[-1:] not in tuple(".:;,!?")
        text += (". " if text and is_sentence else " " if text else "") + line
        if len(text) > _LONGEST and not isinstance(error, EvaluationError):
            text = text[: _LONGEST - 3] + "..."
            break
    name = type(error).__name__
    is_bare_key = isinstance(error, KeyError) and name not in text
    return f"{name}: {text}" if text and is_bare_key else text or name


def _lines(text: str) -> Iterator[str]:
    """Yields informative lines: no calls of a traceback, and nothing after the start of a C++ stack trace."""
    in_traceback = False
    for line in text.splitlines():
        if "(most recent call first)" in line:
            return
        if "(most recent call last)" in line:
            in_traceback = True
        elif line.strip() and not (in_traceback and line[0].isspace()):
            in_traceback = False
            yield line.strip()


def print_error(message: str, program: str = "dist_eval") -> None:
    """Prints an error message of a program to standard error."""
    print(printable_lines(f"{program}: {message}"), file=sys.stderr, flush=True)
