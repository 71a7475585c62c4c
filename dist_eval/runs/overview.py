"""Several runs side by side: what each has measured, and which of them are on the same data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from dist_eval.errors import ConfigError
from dist_eval.metrics.catalogue import metric_names
from dist_eval.results.run import CompleteHarnessRun, CompleteRun
from dist_eval.runs.outcome import Outcome

Measured: TypeAlias = CompleteRun | CompleteHarnessRun
"""Results with metrics and intervals by name."""


def folders_among(paths: Sequence[Path]) -> list[Path]:
    """Returns the paths without files, which `runs/*` matches beside folders; all of them if there are only files."""
    return [path for path in paths if not path.is_file()] or list(paths)


def measured(outcome: Outcome) -> Measured | None:
    """Returns the results of a complete evaluation, on a dataset or on tasks; None for all other runs."""
    return outcome.results if isinstance(outcome.results, CompleteRun | CompleteHarnessRun) else None


def metrics_to_show(runs: Sequence[Measured], asked: Sequence[str] | None = None) -> list[str]:
    """Returns the names of the metrics to show of several runs.

    Args:
        runs: the runs.
        asked: names that the user asked for; by default the usual ones.

    Raises:
        ConfigError: no run has one of them.
    """
    known = {name for run in runs for name in run.metrics}
    for name in asked or ():
        if known and name not in known:
            raise ConfigError(f"There is no metric {name!r}; the runs have {', '.join(sorted(known))}.")
    usual = [name for run in runs for name in _main_metrics(run)]
    return [name for name in dict.fromkeys(asked or usual) if name in known]


def _main_metrics(run: Measured) -> list[str]:
    if isinstance(run, CompleteHarnessRun):
        return run.main_metrics
    return [*metric_names(run.problem_type, "compared"), *run.custom_metrics]


def on_same_data(one: Measured, other: Measured) -> bool:
    """Returns whether the metrics of two runs can be compared.

    A prompt is part of the texts whose digest is recorded, so with one the columns decide. Runs on tasks always can be
    compared: a metric's name has that of its task. Generated texts can if their references are the same.
    """
    if isinstance(one, CompleteRun) and isinstance(other, CompleteRun):
        has_prompt = one.model.prompt is not None or other.model.prompt is not None
        is_same = one.data.text_digest == other.data.text_digest or (has_prompt and one.data.has_texts_of(other.data))
        return one.problem_type == other.problem_type and one.data.selection == other.data.selection and is_same
    if not (isinstance(one, CompleteHarnessRun) and isinstance(other, CompleteHarnessRun)):
        return False
    references = (run.dataset and run.dataset.references_digest for run in (one, other))
    return len({*references}) == 1


def groups_on_same_data(outcomes: Sequence[Outcome]) -> list[list[tuple[Outcome, Measured]]]:
    """Returns the complete evaluations with their results, in groups whose metrics can be compared, in their order."""
    groups: list[list[tuple[Outcome, Measured]]] = []
    for outcome in outcomes:
        run = measured(outcome)
        if run is None:
            continue
        group = next((one for one in groups if on_same_data(one[0][1], run)), None)
        if group is None:
            groups.append([(outcome, run)])
        else:
            group.append((outcome, run))
    return groups
