"""What all programs here have in common: exit statuses, and what they print.

A failed write to a terminal, pipe or disk raises no error at that point. Characters outside the terminal's encoding are
printed as escapes. After a failure, further output is dropped and reported at the end. A run is complete all the same,
because its results are in its folder. A program whose result is its output fails, unless the reader of a pipe closed
it.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from dist_eval.errors import os_reason

# exit statuses
COMPLETE = 0
FAILED = 1
WRONG_OPTIONS = 2
STOPPED_BY_A_PERSON = 3  # the person decides whether to restart the run
STOPPED = 75  # the same command resumes the run; EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130

_LAST_STANDARD_DESCRIPTOR = 2


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


def notify(text: str, file: TextIO | None = None) -> None:
    """Prints a notice, to stderr by default."""
    print(f"notice: {text}", file=file or sys.stderr, flush=True)


def run_program(main: Callable[[], int]) -> NoReturn:
    """Runs a program whose result is its output, and exits with its status."""
    tolerate_broken_output()
    sys.exit(status_after_output(main()))
