"""A summary of runs as records, or as a document: a table of all runs, with remarks."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dist_eval.errors import ConfigError
from dist_eval.report.document import Cell, Document, Link, Number, Section, Table, format_limits, format_metric
from dist_eval.report.kinds import shown_run
from dist_eval.report.naming import distinct_ends, options_of
from dist_eval.results.inputs import Coverage
from dist_eval.results.run import AnyCompleteRun, RunningRun
from dist_eval.results.tuning import TuningRun
from dist_eval.runs.files import REPORT
from dist_eval.runs.outcome import Outcome
from dist_eval.tables import format_count

_RUNS_NAMED = 4
_OF_A_FOLDER = ("output", "overwrite")
_OF_THE_MODEL = ("model", "checkpoint", "adapter", "prompt", "prompt_file", "label_words")
_DIGITS = 8


def _measured(outcome: Outcome) -> AnyCompleteRun | None:
    """Returns the results of a complete evaluation, on a dataset or on tasks; None for all other runs."""
    return outcome.results if isinstance(outcome.results, AnyCompleteRun) else None


def _coverage_of(outcome: Outcome) -> Coverage | None:
    """Returns how many examples a run has evaluated; None if unknown."""
    results = outcome.results
    return None if results is None or isinstance(results, RunningRun) else results.coverage


def on_same_data(run: AnyCompleteRun, other: AnyCompleteRun) -> bool:
    """Returns whether the metrics of two runs can be compared."""
    return shown_run(run).has_data_of(shown_run(other))


def _on_other_data(outcomes: Sequence[Outcome]) -> tuple[Outcome | None, list[Outcome]]:
    """Returns the first complete run, and the complete runs that cannot be compared with it."""
    complete = [(outcome, run) for outcome in outcomes if (run := _measured(outcome))]
    if not complete:
        return None, []
    first, baseline = complete[0]
    return first, [outcome for outcome, run in complete if not on_same_data(run, baseline)]


def choose_metrics(outcomes: Sequence[Outcome], asked: Sequence[str], sort: str | None) -> list[str]:
    """Returns the metrics to show, by default the usual ones; raises `ConfigError` if no run has one of them."""
    runs = [run for run in map(_measured, outcomes) if run]
    known = {name for run in runs for name in run.metrics}
    for name in [*asked, *([sort] if sort else [])]:
        if known and name not in known:
            raise ConfigError(f"There is no metric {name!r}; the runs have {', '.join(sorted(known))}.")
    usual = [name for run in runs for name in shown_run(run).main_metrics]
    return [name for name in dict.fromkeys(asked or usual) if name in known]


def best_first(outcomes: Sequence[Outcome], metric: str) -> list[Outcome]:
    """Sorts runs by a metric, best first; those without it come last, in their order."""

    def place(outcome: Outcome) -> tuple[bool, float]:
        run = _measured(outcome)
        value = run.metrics.get(metric) if run else None
        if run is None or value is None:
            return True, 0.0
        return False, value if shown_run(run).is_lower_better(metric) else -value

    return sorted(outcomes, key=place)


def to_records(outcomes: Sequence[Outcome], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Returns one record for each run, for JSON and CSV; unknown and undefined values are None.

    `other_data_than` is the first complete run if this one is complete and has other texts or labels.
    """
    records = []
    first, others = _on_other_data(outcomes)
    for outcome in outcomes:
        run, coverage = _measured(outcome), _coverage_of(outcome)
        record: dict[str, Any] = {
            "run": str(outcome.folder),
            "status": outcome.status,
            "exit_status": outcome.exit_status,
            "reason": outcome.reason,
            "problem_type": run.problem_type if run else None,
            "examples": coverage.expected if coverage else None,
            "missing": coverage.missing if coverage else None,
            "failed": coverage.failed if coverage else None,
            "seconds": run.throughput.seconds if run else None,  # of the forward passes
            "other_data_than": str(first.folder) if first and outcome in others else None,
        }
        found: dict[str, Any] = {}
        for name in metrics:
            interval = run.intervals.get(name) if run else None
            column = f"metric {name}" if name in record else name  # a user's metric may have any name
            found[column] = run.metrics.get(name) if run else None
            found[f"{column}_low"] = interval.low if interval else None
            found[f"{column}_high"] = interval.high if interval else None
        records.append({**record, **found})
    return records


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
        runs = [(names[outcome.folder], run) for outcome in outcomes if (run := _measured(outcome))]
        options = differing_options([run for _, run in runs]) if runs else {}
        option_rows = [[name, *(values[row] for values in options.values())] for row, (name, _) in enumerate(runs)]
        table = Table("Options that differ", ["run", *options], option_rows, summary_rows=len(option_rows))
        sections.append(Section("Options", [table]))
    return Document(format_count(len(outcomes), "run"), [verdict], sections)


def _cells(outcome: Outcome, metrics: Sequence[str], folder: Path, names: Mapping[Path, str]) -> list[Cell]:
    run, coverage, page = _measured(outcome), _coverage_of(outcome), outcome.folder / REPORT
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
    """Returns why runs are not complete, the best epoch of tunings, and cautions about metrics."""
    remarks = [f"{names[outcome.folder]}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    for outcome in outcomes:
        tuning = outcome.results
        if outcome.status == "complete" and isinstance(tuning, TuningRun) and tuning.best:
            best = tuning.best
            value = "undefined" if best.value is None else f"{best.value:.4f}"
            epoch = f"epoch {best.epoch} of {tuning.epochs[-1].epoch}"
            remarks.append(
                f"{names[outcome.folder]}: tuned, {epoch} is the best by {best.metric} ({value}, optimistic, "
                "because the best epoch was selected)"
            )
    first, others = _on_other_data(outcomes)
    if first is None:
        return remarks
    if others:
        differing = ", ".join(names[outcome.folder] for outcome in others)
        remarks.append(
            f"{differing}: evaluated on different data from {names[first.folder]}, so the metrics are not comparable"
        )
    levels = {run.confidence for outcome in outcomes if (run := _measured(outcome))}
    if len(levels) > 1:
        percents = ", ".join(f"{100 * level:g}%" for level in sorted(levels))
        remarks.append(f"the intervals have different confidence levels: {percents}")
    same = [outcome for outcome in outcomes if _measured(outcome) and outcome not in others]
    if len(same) > 1:
        named = [shlex.quote(names[outcome.folder]) for outcome in same[:_RUNS_NAMED]]
        named += ["..."] * (len(same) > _RUNS_NAMED)
        remarks.append(
            f"picking the best of {len(same)} runs on the same data overstates its result; to test differences: "
            f"dist-eval compare {' '.join(named)}"
        )
    return remarks


def differing_options(runs: Sequence[AnyCompleteRun]) -> dict[str, list[str]]:
    """Returns the options that differ, by name, with their value in each run.

    If the model's options are equal but its weights differ, the weights' digests are included.
    """
    names = dict.fromkeys(name for run in runs for name in run.config if name not in _OF_A_FOLDER)
    public = [options_of(run) for run in runs]
    differing = {}
    for name in names:
        values = [run.config.get(name) for run in runs]
        if any(value != values[0] for value in values):
            differing[name] = _format_values(values, [options.get(name) for options in public])
    digests = [shown_run(run).weights[:_DIGITS] for run in runs]
    if len(set(digests)) > 1 and not differing.keys() & set(_OF_THE_MODEL):
        differing["digest of the weights"] = digests
    return differing


def _format_values(values: Sequence[Any], public: Sequence[Any]) -> list[str]:
    """Formats values; of paths with equal names, as many parts as distinguish them."""
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
