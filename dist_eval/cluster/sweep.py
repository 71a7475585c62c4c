"""A list of runs that differ in some options, one per line of a file, for a job array.

    # name    options of this run
    epoch-1   --checkpoint tuned/epoch-1
    epoch-2   --checkpoint "tuned/epoch 2"

Quoting is that of a shell. Lines count from 1, including empty ones and comments, so that `grep -c ''` counts them.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from dist_eval.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,199}")


@dataclass(frozen=True)
class Entry:
    """One run of a list.

    Attributes:
        name: of the run, and of its folder.
        options: of this run.
    """

    name: str
    options: list[str]


@dataclass(frozen=True)
class Sweep:
    """A list of runs.

    Attributes:
        path: the file.
        entries: runs by line number.
        lines: number of lines.
    """

    path: Path
    entries: dict[int, Entry]
    lines: int

    def at(self, line: int) -> Entry | None:
        """Returns the run on a line, None if it is empty or a comment.

        Raises:
            ConfigError: there is no such line.
        """
        if not 1 <= line <= self.lines:
            raise ConfigError(f"{self.path} has no line {line}: it has {self.lines}, counted from 1.")
        return self.entries.get(line)


def read_sweep(path: Path) -> Sweep:
    """Reads a list of runs.

    Raises:
        ConfigError: it cannot be read, a line is malformed, or a name is repeated; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--list {path} cannot be read: {error}.") from error
    entries: dict[int, Entry] = {}
    for number, line in enumerate(lines, start=1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}.") from error
        if not words:
            continue
        name, *options = words
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{path}, line {number}: {name!r} cannot be the name of a run, which is that of its folder too: use "
                "letters, digits and . _ + = -"
            )
        if any(option.split("=")[0] == "--output" for option in options):
            raise ConfigError(f"{path}, line {number}: --output follows from the name of the run; leave it out.")
        twice = next((other for other, entry in entries.items() if entry.name == name), None)
        if twice:
            raise ConfigError(f"{path}, lines {twice} and {number}: both runs are named {name}.")
        entries[number] = Entry(name, options)
    if not entries:
        raise ConfigError(f"--list {path} names no run.")
    return Sweep(path, entries, len(lines))
