"""`python -m dist_eval.summary RUN [RUN ...]`: status and metrics of many runs, in one table.

Names the runs that failed or are incomplete, and those on other data than the first, and sets an exit status for
scripts. It does not test differences between runs; `dist_eval.compare` does.
"""

from __future__ import annotations

import argparse
import csv
import functools
import io
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from dist_eval.cluster.sweep import read_sweep
from dist_eval.errors import ConfigError, EvaluationError, RunError, os_reason, print_error
from dist_eval.metrics.catalogue import lower_is_better, metric_names
from dist_eval.process.exit_status import COMPLETE, FAILED, STOPPED, WRONG_OPTIONS
from dist_eval.process.files import BY_UMASK, write_atomically
from dist_eval.process.output import run_program
from dist_eval.results.harness import TaskResults
from dist_eval.results.inputs import Coverage
from dist_eval.results.run import CompleteHarnessRun, CompleteRun, RunningRun
from dist_eval.results.tuning import TuningRun
from dist_eval.runs.files import REPORT
from dist_eval.runs.outcome import Outcome, read_outcome
from dist_eval.tables import csv_text, format_count

if TYPE_CHECKING:
    from dist_eval.report.document import Cell, Document

_RUNS_NAMED = 4
_KINDS = (".csv", ".html", ".json", ".md")

Measured: TypeAlias = CompleteRun | CompleteHarnessRun  # results with metrics and intervals by name


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="dist-eval summary",
        description="Shows the status of runs: coverage, metrics, and why a run is not complete.",
        epilog="Exit status: 0 all are complete; 75 some are not, and running their command again resumes them; "
        "2 an option is wrong; 1 some failed or were never started.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output folder of a run; with --list the one "
                        "folder above them")  # fmt: skip
    parser.add_argument("--list", type=Path, metavar="FILE", help="the list of a job array (see "
                        "dist_eval.cluster.job): runs in it that left nothing are missing")  # fmt: skip
    parser.add_argument("--metric", nargs="+", metavar="NAME", help="metrics to show (default: the usual ones)")
    parser.add_argument("--sort", metavar="NAME", help="show the best run by this metric first, of a custom metric "
                        "the one with the largest value (default: as named)")  # fmt: skip
    parser.add_argument("--options", action="store_true", help="also show the options that differ between the runs")
    parser.add_argument("--write", nargs="+", type=Path, default=[], metavar="FILE", help="also write the table: "
                        ".csv, .html, .json or .md")  # fmt: skip
    return parser


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """Returns 0 if all runs are complete, 1 if one needs manual intervention, else 75."""
    statuses = {outcome.exit_status for outcome in outcomes}
    return FAILED if FAILED in statuses else STOPPED if STOPPED in statuses else COMPLETE


def measured(outcome: Outcome) -> Measured | None:
    """Returns the results of a complete evaluation, on a dataset or on tasks; None for all other runs."""
    return outcome.results if isinstance(outcome.results, Measured) else None


def on_same_data(run: Measured, other: Measured) -> bool:
    """Returns whether the metrics of two runs can be compared.

    A prompt is part of the texts whose digest is recorded, so with one the columns decide. Runs on tasks always can be
    compared: a metric's name has that of its task. Generated texts can if their references are the same.
    """
    if isinstance(run, CompleteRun) and isinstance(other, CompleteRun):
        has_prompt = run.model.prompt is not None or other.model.prompt is not None
        is_same = run.data.text_digest == other.data.text_digest or (has_prompt and run.data.has_texts_of(other.data))
        return run.problem_type == other.problem_type and run.data.selection == other.data.selection and is_same
    if not (isinstance(run, CompleteHarnessRun) and isinstance(other, CompleteHarnessRun)):
        return False
    references = (each.dataset and each.dataset.references_digest for each in (run, other))
    return len({*references}) == 1


def _choose_metrics(runs: Sequence[Measured], asked: Sequence[str], sort: str | None) -> list[str]:
    """Returns the names of the metrics to show, by default the usual ones.

    Raises:
        ConfigError: no run has one of them.
    """
    known = {name for run in runs for name in run.metrics}
    for name in [*asked, *([sort] if sort else [])]:
        if known and name not in known:
            raise ConfigError(f"There is no metric {name!r}; the runs have {', '.join(sorted(known))}.")
    usual = [name for run in runs for name in _main_metrics(run)]
    return [name for name in dict.fromkeys(asked or usual) if name in known]


def _main_metrics(run: Measured) -> list[str]:
    if isinstance(run, CompleteHarnessRun):
        return run.main_metrics
    return [*metric_names(run.problem_type, "compared"), *run.custom_metrics]


def _best_first(outcomes: Sequence[Outcome], metric: str) -> list[Outcome]:
    """Sorts runs by a metric; those without it come last, in their order."""

    def place(outcome: Outcome) -> tuple[bool, float]:
        run = measured(outcome)
        value = run.metrics.get(metric) if run else None
        if run is None or value is None:
            return True, 0.0
        return False, value if _is_lower_better(metric, run) else -value

    return sorted(outcomes, key=place)


def _is_lower_better(metric: str, run: Measured) -> bool:
    if isinstance(run, CompleteRun):
        return lower_is_better(metric)
    return any(
        metric == f"{name}/{own.key}" and own.higher_is_better is False
        for name in (*run.tasks, *run.groups)
        for task in _tasks_of(name, run)
        for own in task.metrics
    )


def _tasks_of(name: str, run: CompleteHarnessRun) -> Iterator[TaskResults]:
    """Yields a task, or the tasks of a group and of the groups in it."""
    if name in run.tasks:
        yield run.tasks[name]
    elif name in run.groups:
        for member in run.groups[name].tasks:
            yield from _tasks_of(member, run)


def rows_of(outcomes: Sequence[Outcome], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Returns one record for each run.

    Returns:
        run, status, exit_status, reason, problem_type, number of examples (null if unknown), of missing and of failed
        ones, seconds of the forward passes, the first complete run if this one is complete and has other texts or
        labels (other_data_than), and for each metric its value and the limits of its interval (NAME_low, NAME_high),
        null if undefined.
    """
    rows, first = [], next((outcome for outcome in outcomes if measured(outcome)), None)
    for outcome in outcomes:
        run, coverage = measured(outcome), _coverage(outcome)
        row: dict[str, Any] = {
            "run": str(outcome.folder),
            "status": outcome.status,
            "exit_status": outcome.exit_status,
            "reason": outcome.reason,
            "problem_type": run.problem_type if run else None,
            "examples": coverage.expected if coverage else None,
            "missing": coverage.missing if coverage else None,
            "failed": coverage.failed if coverage else None,
            "seconds": run.throughput.seconds if run else None,
            "other_data_than": str(first.folder) if first and _is_on_other_data(outcome, first) else None,
        }
        for name in metrics:
            interval = run.intervals.get(name) if run else None
            row[name] = run.metrics.get(name) if run else None
            row[f"{name}_low"], row[f"{name}_high"] = (interval.low, interval.high) if interval else (None, None)
        rows.append(row)
    return rows


def _coverage(outcome: Outcome) -> Coverage | None:
    results = outcome.results
    return None if results is None or isinstance(results, RunningRun) else results.coverage


def _is_on_other_data(outcome: Outcome, first: Outcome) -> bool:
    run, baseline = measured(outcome), measured(first)
    return run is not None and baseline is not None and not on_same_data(run, baseline)


def describe(
    outcomes: Sequence[Outcome],
    names: Mapping[Path, str] | None = None,
    *,
    metrics: Sequence[str],
    with_options: bool,
    folder: Path,
) -> Document:
    """Describes runs as a document.

    Args:
        outcomes: the runs.
        names: name of each run by its folder; by default the folder.
        metrics: names of the metrics to show.
        with_options: whether to show the options that differ.
        folder: the folder of a page, relative to which runs' own pages are named.
    """
    from dist_eval.report.differences import differing_options
    from dist_eval.report.document import Document, Section, Table

    complete = sum(outcome.status == "complete" for outcome in outcomes)
    verdict = f"{complete} of {format_count(len(outcomes), 'run is', 'runs are')} complete"
    names = names or {outcome.folder: str(outcome.folder) for outcome in outcomes}
    rows = [_cells(outcome, metrics, folder, names) for outcome in outcomes]
    table = Table("Runs", ["run", "status", "examples", *metrics], rows, summary_rows=len(rows))
    sections = [Section("Runs", [table], notes=_remarks(outcomes, names))]
    if with_options:
        runs = [(outcome, run) for outcome in outcomes if (run := measured(outcome))]
        options = differing_options([run for _, run in runs]) if runs else {}
        rows = [
            [names[outcome.folder], *(values[row] for values in options.values())]
            for row, (outcome, _) in enumerate(runs)
        ]
        table = Table("Options that differ", ["run", *options], rows, summary_rows=len(rows))
        sections.append(Section("Options", [table]))
    return Document(format_count(len(outcomes), "run"), [verdict], sections)


def _cells(outcome: Outcome, metrics: Sequence[str], folder: Path, names: Mapping[Path, str]) -> list[Cell]:
    from dist_eval.metrics.words import format_limits, format_metric
    from dist_eval.report.document import Link, Number

    run, coverage, page = measured(outcome), _coverage(outcome), outcome.folder / REPORT
    name = names[outcome.folder]
    cells: list[Cell] = [
        Link(name, quote(os.path.relpath(page, folder))) if page.exists() else name,
        outcome.status,
        Number(f"{coverage.expected - coverage.missing}", f" of {coverage.expected}" if coverage.missing else "")
        if coverage
        else Number("-"),
    ]
    for metric in metrics:
        value, interval = (run.metrics.get(metric), run.intervals.get(metric)) if run else (None, None)
        cells.append(
            Number("-") if value is None else Number(format_metric(metric, value), format_limits(metric, interval))
        )
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
    complete = [outcome for outcome in outcomes if measured(outcome)]
    others = [outcome for outcome in complete if _is_on_other_data(outcome, complete[0])]
    remarks += [
        f"{names[outcome.folder]}: on other data than {names[complete[0].folder]}, their metrics are not comparable"
        for outcome in others
    ]
    same = [outcome for outcome in complete if outcome not in others]
    if len(same) > 1:
        named = [shlex.quote(names[outcome.folder]) for outcome in same[:_RUNS_NAMED]]
        named += ["..."] * (len(same) > _RUNS_NAMED)
        remarks.append(
            f"the best of {len(same)} is biased upwards by the selection; for tests of the differences: "
            f"dist-eval compare {' '.join(named)}"
        )
    return remarks


def _format_csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: csv_text(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
    )
    return file.getvalue()


def write(path: Path, outcomes: Sequence[Outcome], metrics: Sequence[str], *, with_options: bool) -> None:
    """Writes the summary to a file, in the format of its suffix; creates the folder if it does not exist.

    Raises:
        RunError: it cannot be written.
    """
    from dist_eval.report.html import render_html
    from dist_eval.report.markdown import render_markdown

    document = functools.partial(describe, metrics=metrics, with_options=with_options, folder=path.parent)
    rows = rows_of(outcomes, metrics)
    text = {
        ".csv": lambda: _format_csv(rows),
        ".html": lambda: render_html(document(*_without_directories(outcomes))),
        ".json": lambda: json.dumps(rows, indent=2, allow_nan=False) + "\n",
        ".md": lambda: render_markdown(document(outcomes)),
    }[path.suffix]()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, text.encode(), BY_UMASK)
    except OSError as error:
        raise RunError(f"--write {path}: cannot be written ({os_reason(error)}).") from error


def _without_directories(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], dict[Path, str]]:
    """Returns outcomes with reasons that name no directories, and the shortest distinct names of the runs."""
    from dist_eval.compare.tables import distinct_ends
    from dist_eval.report.naming import without_directories

    folders = [outcome.folder for outcome in outcomes]
    names = dict(zip(folders, distinct_ends([folder.resolve() for folder in folders]), strict=True))
    return [replace(outcome, reason=without_directories(outcome.reason)) for outcome in outcomes], names


def _folders(options: argparse.Namespace) -> list[Path]:
    if options.list is None:
        # a pattern such as runs/* matches files beside folders
        return [path for path in options.runs if not path.is_file()] or options.runs
    if len(options.runs) > 1:
        raise ConfigError("With --list, name one folder: the one above the folders of its runs.")
    return [options.runs[0] / entry.name for entry in read_sweep(options.list) if entry]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1, 2 or 75 (see `build_parser`)."""
    options = build_parser().parse_args(arguments)
    try:
        for path in options.write:
            if path.suffix not in _KINDS:
                raise ConfigError(f"--write {path}: the name must end with one of {', '.join(_KINDS)}.")
        outcomes = [read_outcome(folder) for folder in _folders(options)]
        runs = [run for run in map(measured, outcomes) if run]
        metrics = _choose_metrics(runs, options.metric or (), options.sort)
        if options.sort:
            outcomes = _best_first(outcomes, options.sort)
        from dist_eval.report.text import render_text

        print(render_text(describe(outcomes, metrics=metrics, with_options=options.options, folder=Path())), flush=True)
        for path in options.write:
            write(path, outcomes, metrics, with_options=options.options)
    except EvaluationError as error:
        print_error(str(error), "dist-eval summary")
        return WRONG_OPTIONS if isinstance(error, ConfigError) else FAILED
    return exit_status(outcomes)


if __name__ == "__main__":
    run_program(main)
