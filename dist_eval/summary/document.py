"""A summary of runs as a document: a table of all of them, and what a reader should know beside it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dist_eval.metrics.formatting import format_limits, format_metric
from dist_eval.report.document import Cell, Document, Link, Number, Results, Section, Table
from dist_eval.report.naming import distinct_ends, options_of
from dist_eval.results.run import CompleteHarnessRun
from dist_eval.results.tuning import TuningRun
from dist_eval.runs.files import REPORT
from dist_eval.runs.outcome import Outcome
from dist_eval.summary.rows import coverage_of, measured, on_other_data
from dist_eval.tables import format_count

_RUNS_NAMED = 4
_OF_A_FOLDER = ("output", "overwrite")
_OF_THE_MODEL = ("model", "checkpoint", "adapter", "prompt", "prompt_file", "label_words")
_DIGITS = 8


def describe_summary(
    outcomes: Sequence[Outcome], names: Mapping[Path, str], metrics: Sequence[str], *, with_options: bool, folder: Path
) -> Document:
    """Describes runs."""
    complete = sum(outcome.status == "complete" for outcome in outcomes)
    verdict = f"{complete} of {format_count(len(outcomes), 'run is', 'runs are')} complete"
    rows = [_cells(outcome, metrics, folder, names) for outcome in outcomes]
    table = Table("", ["run", "status", "examples", *metrics], rows, summary_rows=len(rows))
    sections = [Section("Runs", [table], notes=_remarks(outcomes, names))]
    if with_options:
        runs = [(names[outcome.folder], run) for outcome in outcomes if (run := measured(outcome))]
        options = differing_options([run for _, run in runs]) if runs else {}
        option_rows = [[name, *(values[row] for values in options.values())] for row, (name, _) in enumerate(runs)]
        table = Table("Options that differ", ["run", *options], option_rows, summary_rows=len(option_rows))
        sections.append(Section("Options", [table]))
    return Document(format_count(len(outcomes), "run"), [verdict], sections)


def _cells(outcome: Outcome, metrics: Sequence[str], folder: Path, names: Mapping[Path, str]) -> list[Cell]:
    run, coverage, page = measured(outcome), coverage_of(outcome), outcome.folder / REPORT
    name, examples = names[outcome.folder], Number("-")
    if coverage:
        missing = f" of {coverage.expected}" if coverage.missing else ""
        examples = Number(f"{coverage.expected - coverage.missing}", missing)
    link = Link(name, quote(os.path.relpath(page, folder))) if page.exists() else name
    cells: list[Cell] = [link, outcome.status, examples]
    for metric in metrics:
        value = run.metrics.get(metric) if run else None
        if run is None or value is None:
            cells.append(Number("-"))
        else:
            cells.append(Number(format_metric(metric, value), format_limits(metric, run.intervals.get(metric))))
    return cells


def _remarks(outcomes: Sequence[Outcome], names: Mapping[Path, str]) -> list[str]:
    """Returns why runs are not complete, the best epoch of tunings, and cautions about metrics that mislead."""
    remarks = [f"{names[outcome.folder]}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    for outcome in outcomes:
        tuning = outcome.results
        if outcome.status == "complete" and isinstance(tuning, TuningRun) and tuning.best:
            best = tuning.best
            value = "undefined" if best.value is None else f"{best.value:.4f}"
            epoch = f"epoch {best.epoch} of {tuning.epochs[-1].epoch}"
            remarks.append(
                f"{names[outcome.folder]}: tuned, {epoch} is the best by {best.metric} ({value}, biased upwards by the "
                "selection)"
            )
    first, others = on_other_data(outcomes)
    if first is None:
        return remarks
    remarks += [
        f"{names[outcome.folder]}: on other data than {names[first.folder]}, their metrics are not comparable"
        for outcome in others
    ]
    same = [outcome for outcome in outcomes if measured(outcome) and outcome not in others]
    if len(same) > 1:
        named = [shlex.quote(names[outcome.folder]) for outcome in same[:_RUNS_NAMED]]
        named += ["..."] * (len(same) > _RUNS_NAMED)
        remarks.append(
            f"the best of {len(same)} is biased upwards by the selection; for tests of the differences: "
            f"dist-eval compare {' '.join(named)}"
        )
    return remarks


def differing_options(runs: Sequence[Results]) -> dict[str, list[str]]:
    """Returns the options that differ, by name, with their value in each run.

    Where the model's options are all alike, but not its weights, the digests of the weights are among them.
    """
    names = dict.fromkeys(name for run in runs for name in run.config if name not in _OF_A_FOLDER)
    public = [options_of(run) for run in runs]
    differing = {}
    for name in names:
        values = [run.config.get(name) for run in runs]
        if any(value != values[0] for value in values):
            differing[name] = _format_values(values, [options.get(name) for options in public])
    digests = [_weights_digest(run)[:_DIGITS] for run in runs]
    if len(set(digests)) > 1 and not differing.keys() & set(_OF_THE_MODEL):
        differing["digest of the weights"] = digests
    return differing


def _format_values(values: Sequence[Any], public: Sequence[Any]) -> list[str]:
    """Formats values: of paths that end alike, as much as tells them apart."""
    formatted = [_format_value(value) for value in public]
    are_texts = all(isinstance(value, str | None) for value in values)
    if are_texts and len(set(formatted)) < len({str(value) for value in values}):
        ends = iter(distinct_ends([Path(value) for value in values if value is not None]))
        formatted = [_format_value(None) if value is None else next(ends) for value in values]
    return formatted


def _format_value(value: Any) -> str:
    if value in (None, [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _weights_digest(run: Results) -> str:
    return run.model.digest if isinstance(run, CompleteHarnessRun) else run.model.weights_digest
