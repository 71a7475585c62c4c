"""What differs between the options of several runs, without directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dist_eval.compare.tables import distinct_ends
from dist_eval.report.document import Results
from dist_eval.report.naming import options_of
from dist_eval.results.run import CompleteHarnessRun

_OF_A_FOLDER = ("output", "overwrite")
_OF_THE_MODEL = ("model", "checkpoint", "adapter", "prompt", "prompt_file", "label_words")
_DIGITS = 8


def differing_options(runs: Sequence[Results]) -> dict[str, list[str]]:
    """Returns the options that differ, by name, with their value in each run.

    Where the model's options are all alike, but not its weights, the digests of the weights are among them.
    """
    names = dict.fromkeys(name for run in runs for name in run.config if name not in _OF_A_FOLDER)
    public = [options_of(run) for run in runs]
    found = {}
    for name in names:
        values = [run.config.get(name) for run in runs]
        if any(value != values[0] for value in values):
            found[name] = _format_values(values, [options.get(name) for options in public])
    digests = [_weights_digest(run)[:_DIGITS] for run in runs]
    if len(set(digests)) > 1 and not found.keys() & set(_OF_THE_MODEL):
        found["digest of the weights"] = digests
    return found


def _format_values(values: Sequence[Any], public: Sequence[Any]) -> list[str]:
    """Formats values: of paths that end alike, as much as tells them apart."""
    formatted = [_format_value(value) for value in public]
    are_texts = all(isinstance(value, str | None) for value in values)
    if are_texts and len(set(formatted)) < len({str(value) for value in values}):
        ends = iter(distinct_ends([Path(value) for value in values if value is not None]))
        formatted = [_format_value(None) if value is None else next(ends) for value in values]
    return formatted


def _format_value(value: Any) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _weights_digest(run: Results) -> str:
    return run.model.digest if isinstance(run, CompleteHarnessRun) else run.model.weights_digest
