"""A list of runs that differ in some options, one per line of a file, for a job array.

    # name    options of this run
    epoch-1   --checkpoint tuned/epoch-1
    epoch-2   --checkpoint "tuned/epoch 2"

Quoting is that of a shell. Lines count from 1, including empty ones and comments, so that `grep -c ''` counts them.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from dist_eval.errors import ConfigError, os_reason

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,199}")


class Entry(NamedTuple):
    """One run of a list: its name, which is that of its folder too, and its options."""

    name: str
    options: list[str]


def read_sweep(path: Path) -> list[Entry | None]:
    """Reads a list of runs.

    Returns:
        The run of each line, None for an empty line or a comment.

    Raises:
        ConfigError: it cannot be read, a line is malformed, or a name is repeated; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--list {path} cannot be read: {os_reason(error)}.") from error
    entries: list[Entry | None] = []
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}.") from error
        if not words:
            entries.append(None)
            continue
        name, *options = words
        entries.append(Entry(name, options))
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{path}, line {number}: {name!r} cannot be the name of a run, which is that of its folder too: use "
                "letters, digits and . _ + = -"
            )
        if any(option.split("=")[0] == "--output" for option in options):
            raise ConfigError(f"{path}, line {number}: --output follows from the name of the run; leave it out.")
        if numbers.setdefault(name, number) < number:
            raise ConfigError(f"{path}, lines {numbers[name]} and {number}: both runs are named {name}.")
    if not numbers:
        raise ConfigError(f"--list {path} names no run.")
    return entries
