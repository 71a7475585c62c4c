"""`python -m dist_eval.summary RUN [RUN ...]`: status and metrics of many runs, in one table.

Names the runs that failed or are incomplete, and those on other data than the first, and sets an exit status for
scripts. It does not test differences between runs; `dist_eval.compare` does.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dist_eval.cluster.sweep import read_sweep
from dist_eval.errors import ConfigError, EvaluationError, RunError, os_reason, print_error
from dist_eval.printable import printable_lines
from dist_eval.process.exit_status import COMPLETE, FAILED, STOPPED, WRONG_OPTIONS
from dist_eval.process.files import BY_UMASK, write_atomically
from dist_eval.process.output import run_program
from dist_eval.results.inputs import Coverage
from dist_eval.results.run import RunningRun
from dist_eval.runs.outcome import Outcome, read_outcome
from dist_eval.runs.overview import folders_among, measured, metrics_to_show, on_same_data
from dist_eval.tables import csv_text, format_count, markdown_table, text_table

_RUNS_NAMED = 4
_KINDS = (".csv", ".json", ".md")


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
    parser.add_argument(
        "--write", nargs="+", type=Path, default=[], metavar="FILE", help="also write the table: .csv, .json or .md"
    )
    return parser


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """Returns 0 if all runs are complete, 1 if one needs manual intervention, else 75."""
    statuses = {outcome.exit_status for outcome in outcomes}
    return FAILED if FAILED in statuses else STOPPED if STOPPED in statuses else COMPLETE


def rows_of(outcomes: Sequence[Outcome], figures: Sequence[str]) -> list[dict[str, Any]]:
    """Returns one record for each run.

    Returns:
        run, status, exit_status, reason, problem_type, number of examples (null if unknown), of missing and of failed
        ones, seconds of the forward passes, the first complete run if this one is complete and has other texts or
        labels (other_data_than), and for each metric its value and the limits of its interval (NAME_low, NAME_high),
        null if undefined.
    """
    rows, first = [], _first_measured(outcomes)
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
        for name in figures:
            interval = run.intervals.get(name) if run else None
            row[name] = run.metrics.get(name) if run else None
            row[f"{name}_low"], row[f"{name}_high"] = (interval.low, interval.high) if interval else (None, None)
        rows.append(row)
    return rows


def _coverage(outcome: Outcome) -> Coverage | None:
    results = outcome.results
    return None if results is None or isinstance(results, RunningRun) else results.coverage


def _first_measured(outcomes: Sequence[Outcome]) -> Outcome | None:
    return next((outcome for outcome in outcomes if measured(outcome)), None)


def _is_on_other_data(outcome: Outcome, first: Outcome) -> bool:
    run, baseline = measured(outcome), measured(first)
    return run is not None and baseline is not None and not on_same_data(run, baseline)


def _table(outcomes: Sequence[Outcome], figures: Sequence[str]) -> list[list[str]]:
    return [["run", "status", "examples", *figures], *(_cells(outcome, figures) for outcome in outcomes)]


def _cells(outcome: Outcome, figures: Sequence[str]) -> list[str]:
    from dist_eval.metrics.words import limits_words, metric_words

    run, coverage, examples = measured(outcome), _coverage(outcome), "-"
    if coverage:
        examples = f"{coverage.expected - coverage.missing}" + (f" of {coverage.expected}" if coverage.missing else "")
    cells = [str(outcome.folder), outcome.status, examples]
    for name in figures:
        value = run.metrics.get(name) if run else None
        limits = limits_words(name, run.intervals.get(name)) if run else ""
        cells.append("-" if value is None else metric_words(name, value) + limits)
    return cells


def _verdict(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns the number of complete runs, for each of the others the reason, and cautions."""
    complete = sum(outcome.status == "complete" for outcome in outcomes)
    problems = [f"{outcome.folder}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    cautions = _cautions([outcome for outcome in outcomes if measured(outcome)])
    return [f"{complete} of {format_count(len(outcomes), 'run is', 'runs are')} complete", *problems, *cautions]


def _cautions(complete: Sequence[Outcome]) -> list[str]:
    """Returns warnings about metrics that should not be compared directly."""
    others = [outcome for outcome in complete if _is_on_other_data(outcome, complete[0])]
    lines = [
        f"{one.folder}: on other data than {complete[0].folder}, their metrics are not comparable" for one in others
    ]
    alike = [outcome for outcome in complete if not _is_on_other_data(outcome, complete[0])]
    if len(alike) > 1:
        named = [shlex.quote(str(one.folder)) for one in alike[:_RUNS_NAMED]] + ["..."] * (len(alike) > _RUNS_NAMED)
        lines.append(
            f"the best of {len(alike)} is biased upwards by the selection; for tests of the differences: "
            f"dist-eval compare {' '.join(named)}"
        )
    return lines


def format_table(outcomes: Sequence[Outcome], figures: Sequence[str]) -> str:
    """Returns the table for a terminal."""
    return printable_lines("\n".join([*text_table(_table(outcomes, figures)), "", *_verdict(outcomes)]))


def format_markdown(outcomes: Sequence[Outcome], figures: Sequence[str]) -> str:
    """Returns the table in Markdown."""
    from dist_eval.report.markdown import code

    head, *rows = [[cell.replace("|", "\\|") for cell in cells] for cells in _table(outcomes, figures)]
    named = [[code(outcome.folder), *cells[1:]] for outcome, cells in zip(outcomes, rows, strict=True)]
    first, *others = _verdict(outcomes)
    return "\n".join([*markdown_table([head, *named]), "", f"{first}.", *(f"- {code(line)}" for line in others)]) + "\n"


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: csv_text(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows
    )
    return file.getvalue()


def write(path: Path, outcomes: Sequence[Outcome], figures: Sequence[str]) -> None:
    """Writes the summary to a file, in the format of its suffix; creates the folder if it does not exist.

    Raises:
        RunError: it cannot be written.
    """
    if path.suffix == ".md":
        text = format_markdown(outcomes, figures)
    else:
        rows = rows_of(outcomes, figures)
        text = _csv(rows) if path.suffix == ".csv" else json.dumps(rows, indent=2, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, text.encode(), BY_UMASK)
    except OSError as error:
        raise RunError(f"--write {path}: cannot be written ({os_reason(error)}).") from error


def _require_kinds(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.suffix not in _KINDS:
            raise ConfigError(f"--write {path}: the name must end with one of {', '.join(_KINDS)}.")


def _folders(options: argparse.Namespace) -> list[Path]:
    if options.list is None:
        return folders_among(options.runs)
    if len(options.runs) > 1:
        raise ConfigError("With --list, name one folder: the one above the folders of its runs.")
    return [options.runs[0] / entry.name for entry in read_sweep(options.list) if entry]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1, 2 or 75 (see `build_parser`)."""
    options = build_parser().parse_args(arguments)
    try:
        _require_kinds(options.write)
        outcomes = [read_outcome(folder) for folder in _folders(options)]
        figures = metrics_to_show([run for run in map(measured, outcomes) if run], options.metric)
        print(format_table(outcomes, figures), flush=True)
        for path in options.write:
            write(path, outcomes, figures)
    except EvaluationError as error:
        print_error(str(error), "dist-eval summary")
        return WRONG_OPTIONS if isinstance(error, ConfigError) else FAILED
    return exit_status(outcomes)


if __name__ == "__main__":
    run_program(main)
