"""Reads lists and grids of runs, for a job array or `dist-eval sweep`.

A list has a run on each line, in shell syntax. Lines count from 1, including empty lines and comments, as `grep -c ''`
counts them:

    # name    options of this run
    epoch-1   --checkpoint tuned/epoch-1
    epoch-2   --checkpoint "tuned/epoch 2"

A grid is a YAML file with a run for each combination of values, and common options:

    command: harness
    num-fewshot: 5
    grid:
      model: [./llama, ./qwen]
      tasks: [arc_easy, hellaswag]
      seed: [0, 1]
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_eval.arguments.commandline import to_words
from dist_eval.arguments.fields import Options
from dist_eval.errors import ConfigError, translating_os_errors
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.harness import HarnessConfig
from dist_eval.options.tuning import TuningConfig
from dist_eval.process.parsing import parse_yaml

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,199}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+=-]+")
_GRID_SUFFIXES = (".yaml", ".yml")
_COMMANDS = {"run": EvaluationConfig, "harness": HarnessConfig, "tune": TuningConfig}
_FILE = "config"


@dataclass(frozen=True)
class Entry:
    """One run: its name (also that of its folder), its options, and in a grid the name of each axis' value."""

    name: str
    options: list[str]
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """A run for each combination of the values of some axes."""

    command: str  # command of `dist-eval`
    axes: Sequence[str]
    entries: Sequence[Entry]


def read_sweep(path: Path) -> list[Entry | None]:
    """Returns the run of each line of a list, None for an empty line or a comment; or the runs of a grid."""
    return list(read_grid(path).entries) if path.suffix in _GRID_SUFFIXES else _read_list(path)


def _read_list(path: Path) -> list[Entry | None]:
    lines = _read(path).removesuffix("\n").split("\n")
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
        _check_name(name, f"{path}, line {number}")
        if any(option.split("=")[0] == "--output" for option in options):
            raise ConfigError(f"{path}, line {number}: leave out --output, which follows from the run's name.")
        if numbers.setdefault(name, number) < number:
            raise ConfigError(f"{path}, lines {numbers[name]} and {number}: both runs are named {name}.")
    if not numbers:
        raise ConfigError(f"--list {path} contains no runs.")
    return entries


def read_grid(path: Path) -> Grid:
    """Reads a grid."""
    try:
        content = parse_yaml(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}.") from error
    if not isinstance(content, dict) or not isinstance(content.get("grid"), dict) or not content["grid"]:
        raise ConfigError(f"{path} has no `grid:` with the options that vary, such as `seed: [0, 1, 2]`.")
    shared = _named(content, str(path))
    command, axes_of_values = shared.pop("command", "run"), _named(shared.pop("grid"), f"{path}, grid")
    if command not in [*_COMMANDS]:
        raise ConfigError(f"{path}: command must be one of {', '.join(_COMMANDS)}, not {command!r}.")
    axes = {axis: _read_axis(axis, values, path) for axis, values in axes_of_values.items()}
    entries: dict[str, Entry] = {}
    for combination in itertools.product(*(values.items() for values in axes.values())):
        values = dict(zip(axes, (value for value, _ in combination), strict=True))
        varied: dict[str, Any] = {}
        for _, own in combination:
            if both := varied.keys() & own.keys():
                raise ConfigError(f"{path}: {min(both)} is given twice for the run {'-'.join(values.values())}.")
            varied |= own
        options = {**shared, **varied}
        name = "-".join(values.values())
        if name.startswith("-"):
            name = f"{next(iter(axes))}={name}"
        _check_name(name, str(path))
        if name in entries:
            raise ConfigError(f"{path}: two runs are named {name}. Name the values: `AXIS: {{NAME: VALUE, ...}}`.")
        entries[name] = Entry(name, _to_words(options, _COMMANDS[command], f"{path}, run {name}"), values)
    return Grid(command, list(axes), list(entries.values()))


def _read_axis(axis: str, values: Any, path: Path) -> dict[str, dict[str, Any]]:
    """Returns the options of each value of an axis, by its name."""
    if isinstance(values, dict):
        named = {str(name): value for name, value in values.items()}
        if len(named) < len(values):
            raise ConfigError(f"{path}: two values of {axis} have the same name.")
    elif isinstance(values, list):
        named = {_name_value(axis, value): value for value in values}
        if len(named) < len(values):
            raise ConfigError(
                f"{path}: two values of {axis} have the same name. Name them: `{axis}: {{NAME: VALUE, ...}}`."
            )
    else:
        named = {}
    if not named:
        raise ConfigError(f"{path}: {axis} must be a list of values, or a mapping of names to values, not {values!r}.")
    return {
        name: _named(value, f"{path}, {axis}") if isinstance(value, dict) else {axis: value}
        for name, value in named.items()
    }


def _named(options: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Returns options by their command-line name without leading dashes."""
    named: dict[str, Any] = {}
    for spelled, value in options.items():
        name = str(spelled).replace("_", "-").lstrip("-")
        if name in named:
            raise ConfigError(f"{where}: {name} is given twice.")
        named[name] = value
    return named


def _name_value(axis: str, value: Any) -> str:
    """Returns a value as a part of a run's name: the last part of a path, or a number with its option."""
    if isinstance(value, str):
        return _NOT_IN_NAMES.sub("_", Path(value).name)
    if isinstance(value, list):
        return "+".join(_name_value(axis, item) for item in value)
    if value is None or isinstance(value, bool):
        return axis if value else f"no-{axis}"
    return f"{axis}={value}"


def _to_words(options: Mapping[str, Any], config: type[Options], where: str) -> list[str]:
    if "output" in options:
        raise ConfigError(f"{where}: leave out output, which follows from the names of the runs.")
    if "nproc-per-node" in options:
        raise ConfigError(f"{where}: nproc-per-node is an option of `dist-eval sweep`; set it there.")
    others = {name: value for name, value in options.items() if name != _FILE}
    file = options.get(_FILE)
    if file is not None and not isinstance(file, str):
        raise ConfigError(f"{where}: {_FILE} must be the path of a file, not {file!r:.80}.")
    return [*([] if file is None else [f"--{_FILE}={file}"]), *to_words(others, config, where)]


def _read(path: Path) -> str:
    with translating_os_errors(ConfigError, f"{path} cannot be read"):
        return path.read_text(encoding="utf-8")


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: {name!r} cannot be the name of a run and its folder: use letters, digits and . _ + = -"
        )
