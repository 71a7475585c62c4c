"""What differs between runs, in words: their options, and no directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from dist_eval.compare.tables import distinct_ends
from dist_eval.report.naming import options_of, without_folders
from dist_eval.results.run import CompleteHarnessRun, CompleteRun
from dist_eval.results.tuning import TuningRun

AnyRun: TypeAlias = CompleteRun | CompleteHarnessRun | TuningRun

_OF_A_FOLDER = ("output", "overwrite")
_OF_THE_MODEL = ("model", "checkpoint", "adapter", "prompt", "prompt_file", "label_words")
_DIGITS = 8


def differing_options(runs: Sequence[AnyRun]) -> dict[str, list[str]]:
    """Returns the options that differ, by name, with their value in each run.

    Where the model's options are all alike, but not its weights, the digests of the weights are among them.
    """
    names = dict.fromkeys(name for run in runs for name in run.config if name not in _OF_A_FOLDER)
    public = [_public_options(run) for run in runs]
    found = {}
    for name in names:
        values = [run.config.get(name) for run in runs]
        if any(value != values[0] for value in values):
            found[name] = _in_words(values, [options.get(name) for options in public])
    digests = [_weights_digest(run)[:_DIGITS] for run in runs]
    if len(set(digests)) > 1 and not found.keys() & set(_OF_THE_MODEL):
        found["digest of the weights"] = digests
    return found


def _public_options(run: AnyRun) -> dict[str, Any]:
    return without_folders(run.config) if isinstance(run, TuningRun) else options_of(run)


def _in_words(values: Sequence[Any], public: Sequence[Any]) -> list[str]:
    """Returns values in words: of paths that end alike, as much as tells them apart."""
    words = [_words(value) for value in public]
    if len(set(words)) < len({str(value) for value in values}) and all(isinstance(one, str | None) for one in values):
        ends = iter(distinct_ends([Path(value) for value in values if value is not None]))
        words = [_words(None) if value is None else next(ends) for value in values]
    return words


def _words(value: Any) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _weights_digest(run: AnyRun) -> str:
    return run.model.digest if isinstance(run, CompleteHarnessRun) else run.model.weights_digest
