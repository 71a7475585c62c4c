"""Public names of the models, datasets and files of a run, without directories of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dist_eval.results.inputs import DatasetSummary
from dist_eval.results.run import AnyCompleteRun, CompleteRun

_SOURCES = ("model", "dataset", "eval_dataset", "adapter")
_FILES = ("checkpoint", "output", "peers_file", "prompt_file", "few_shot_from")
_LISTS = ("metric", "tasks", "include_path")
_DIRECTORIES = re.compile(r"(?<![\w./~-])/(?:[^\s/'\"]+/)+")


def name_of(source: str, is_path: bool | None = None) -> str:
    """Returns the public name of a model or dataset."""
    if is_path is None:
        is_path = source.startswith(("/", ".", "~")) or os.path.exists(source)  # Path.exists fails for long names
    return Path(os.path.normpath(source)).name or source if is_path else source


def dataset_name(data: DatasetSummary) -> str:
    """Returns the public name of a dataset."""
    return name_of(data.source, data.is_path)


def without_directories(message: str) -> str:
    """Removes directories from absolute paths in a message."""
    return _DIRECTORIES.sub("", message)


def distinct_ends(paths: Sequence[Path]) -> list[str]:
    """Returns the shortest distinct suffixes of paths."""
    ends = [str(path) for path in paths]
    for parts in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        ends = [str(Path(*path.parts[-parts:])) for path in paths]
        if len(set(ends)) == len(set(paths)):
            break
    return ends


def options_of(results: AnyCompleteRun) -> dict[str, Any]:
    """Returns the options of a complete run without directories (see `without_folders`)."""
    are_paths = {"model": results.model.base_is_path}
    if isinstance(results, CompleteRun):
        are_paths["dataset"] = results.data.is_path
    return without_folders(results.config, are_paths)


def without_folders(options: Mapping[str, Any], are_paths: Mapping[str, bool | None] | None = None) -> dict[str, Any]:
    """Returns options with public names instead of paths; `are_paths` says which are paths, if known."""
    named = {**dict.fromkeys(_SOURCES), **(are_paths or {}), **dict.fromkeys(_FILES, True)}
    shown = {name: _names_of(options[name], is_path) for name, is_path in named.items() if options.get(name)}
    lists = {name: [Path(value).name for value in options[name]] for name in _LISTS if options.get(name)}
    return {**options, **shown, **lists}


def _names_of(given: str | list[str], is_path: bool | None) -> str | list[str]:
    return name_of(given, is_path) if isinstance(given, str) else [name_of(value, is_path) for value in given]
