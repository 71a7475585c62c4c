"""What all programs here have in common: the parser of their command lines, their exit statuses, and what they print.

A terminal, a pipe or a disk that does not take what is printed raises no error there. A character that the terminal's
encoding lacks is printed as an escape. Where nothing can be written any more, the rest is dropped, and the program's
end says so: a run is as complete as its folder says, but a program whose work is what it prints fails, unless who read
it has read enough.
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
STOPPED_BY_A_PERSON = 3  # who decides whether to start the run again
STOPPED = 75  # the same command resumes the run; what sysexits.h has for "try again"
INTERRUPTED = 130

_LAST_STANDARD_DESCRIPTOR = 2


class ArgumentParser(argparse.ArgumentParser):
    """Accepts options with underscores, too: `--num_fewshot` like `--num-fewshot`; rejects a value given twice."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in (None, "store"):
            self.register("action", name, _StoreOnce)
        self.given: dict[str, str] = {}  # how each option was spelled, by its name

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self.given.clear()
        words = [self._with_dashes(word) for word in (sys.argv[1:] if args is None else args)]
        for word in words:
            if (
                word.endswith("=--") and word[:-3] in self._option_string_actions
            ):  # Python 3.12 and older drop the value
                self.error(f"{word}: a value -- cannot be given on a command line")
        return super().parse_known_args(words, namespace)

    def _with_dashes(self, word: str) -> str:
        name, equals, value = word.partition("=")
        dashed = name.replace("_", "-")
        return dashed + equals + value if dashed in self._option_string_actions else word


class _StoreOnce(argparse._StoreAction):
    """Stores the value of an option, which may be given once: a second value would replace the first one."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if option_string is not None:
            if before := parser.given.get(self.dest):
                which = "is given twice" if before == option_string else f"and {option_string} are one option"
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
            while rest:  # all of it: unbuffered streams do not ask how much was written
                if (written := super().write(rest)) is None:  # another process has made the terminal non-blocking
                    select.select([], [self], [])
                else:
                    rest = rest[written:]
        except OSError as error:
            self.error = self.error or error
        return whole.nbytes


_outputs: dict[str, _Output] = {}


def tolerate_broken_output() -> None:
    """Makes this program's standard streams such outputs, unless something has redirected them; also closed ones.

    Call it first: a file that is opened while a standard stream is closed would take its descriptor.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD_DESCRIPTOR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _tolerant(stream, name))


def _tolerant(stream: Any, name: str) -> io.TextIOWrapper:
    descriptor = os.open(os.devnull, os.O_WRONLY) if stream is None else stream.fileno()  # None: it was closed
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
    """Writes what is buffered, and returns why standard output is not complete; empty if it is.

    It is so for a pipe whose reader ended before, too, as `head` does.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    error = _outputs["stdout"].error if "stdout" in _outputs else None
    return "" if error is None or error.errno == errno.EPIPE else os_reason(error)


def status_after_output(status: int) -> int:
    """Returns the exit status of a program whose work is what it prints."""
    why = lost_output()
    if not why:
        return status
    print(f"dist_eval: standard output cannot be written: {why}.", file=sys.stderr, flush=True)
    return status or FAILED


def run_program(main: Callable[[], int]) -> NoReturn:
    """Runs a program whose work is what it prints, and exits with its status."""
    tolerate_broken_output()
    sys.exit(status_after_output(main()))
