"""Common parts of all programs: command-line parser, exit statuses and output.

A failed write to a terminal, pipe or disk raises no error at that point. Characters outside the terminal's encoding are
printed as escapes. After a failure, further output is dropped and reported at the end. A run is complete all the same,
because its results are in its folder. A program whose result is its output fails, unless the reader of a pipe closed
it.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from dist_eval.errors import os_reason

# exit statuses
COMPLETE = 0
FAILED = 1
WRONG_OPTIONS = 2
STOPPED_BY_A_PERSON = 3  # the person decides whether to restart the run
STOPPED = 75  # the same command resumes the run; EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130

_LAST_STANDARD_DESCRIPTOR = 2


class ArgumentParser(argparse.ArgumentParser):
    """Also accepts underscores in options (`--num_fewshot`); rejects options that are given twice."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)
        self.given: dict[str, str] = {}  # spelling of each option, by its name

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self.given.clear()
        words = [self._with_dashes(word) for word in (sys.argv[1:] if args is None else args)]
        for word in words:
            if (
                word.endswith("=--") and word[:-3] in self._option_string_actions
            ):  # Python 3.12 and older drop the value
                self.error(f"{word}: the value -- is not possible on a command line")
        return super().parse_known_args(words, namespace)

    def _with_dashes(self, word: str) -> str:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        return dashed + equals + value if dashed in self._option_string_actions else word


class _StoreOnce(argparse._StoreAction):
    """Stores the value of an option; a second value is an error, not a replacement."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if option_string is not None:
            if before := parser.given.get(self.dest):
                which = "is given twice" if before == option_string else f"and {option_string} are the same option"
                more = ", with all its values" if self.nargs == "+" else ""
                parser.error(f"{before} {which}: give it once{more}.")
            parser.given[self.dest] = option_string
        super().__call__(parser, namespace, values, option_string)


class _Output(io.FileIO):
    """A standard stream that remembers its first error instead of raising it."""

    error: OSError | None = None

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.name = name

    def write(self, data: Any) -> int:
        whole = rest = memoryview(data).cast("B")
        try:
            while rest:  # unbuffered streams ignore partial writes
                if (written := super().write(rest)) is None:  # another process made the terminal non-blocking
                    select.select([], [self], [])
                else:
                    rest = rest[written:]
        except OSError as error:
            self.error = self.error or error
        return whole.nbytes


_outputs: dict[str, _Output] = {}


def tolerate_broken_output() -> None:
    """Makes this program's standard streams, even closed ones, such outputs unless they were replaced.

    Call it first: a file opened while a standard stream is closed would get its descriptor.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD_DESCRIPTOR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _tolerant(stream, name))


def _tolerant(stream: Any, name: str) -> io.TextIOWrapper:
    descriptor = os.open(os.devnull, os.O_WRONLY) if stream is None else stream.fileno()  # None: closed
    _outputs[name] = raw = _Output(descriptor, f"<{name}>")
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace")
    stream.flush()
    return io.TextIOWrapper(
        raw if isinstance(stream.buffer, io.FileIO) else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def lost_output() -> str:
    """Flushes standard output, and returns why it is incomplete; empty if it is complete.

    A pipe whose reader has ended, such as `head`, counts as complete.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    error = _outputs["stdout"].error if "stdout" in _outputs else None
    return "" if error is None or error.errno == errno.EPIPE else os_reason(error)


def status_after_output(status: int) -> int:
    """Returns the exit status of a program whose result is its output."""
    why = lost_output()
    if not why:
        return status
    print(f"dist_eval: standard output cannot be written: {why}.", file=sys.stderr, flush=True)
    return status or FAILED


def run_program(main: Callable[[], int]) -> NoReturn:
    """Runs a program whose result is its output, and exits with its status."""
    tolerate_broken_output()
    sys.exit(status_after_output(main()))
