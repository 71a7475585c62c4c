"""`python -m dist_eval.summary RUN [RUN ...]`: status and metrics of many runs, in one table.

Names runs that failed or are incomplete, and those on other data than the first, and sets an exit status for scripts.
`dist_eval.compare` tests differences between runs.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dist_eval.arguments.commandline import Command, run_command
from dist_eval.arguments.fields import Options, argument, option
from dist_eval.arguments.types import Paths, Words
from dist_eval.cluster.run_lists import read_sweep
from dist_eval.errors import ConfigError, RunError, translating_os_errors
from dist_eval.process.files import BY_UMASK, write_atomically
from dist_eval.process.programs import COMPLETE, FAILED, STOPPED, run_program
from dist_eval.runs.outcome import Outcome, read_outcome
from dist_eval.summary.document import best_first, choose_metrics, describe_summary, to_records
from dist_eval.tables import csv_text

_KINDS = (".csv", ".html", ".json", ".md")


@dataclass(kw_only=True)
class TableOptions(Options):
    """The files to write a table to."""

    write: list[Path] = option([], "also write the table: .csv, .html, .json or .md", metavar="FILE")

    def _validate(self) -> None:
        for path in self.write:
            if path.suffix not in _KINDS:
                raise ConfigError(f"--write {path}: the name must end with one of {', '.join(_KINDS)}.")


@dataclass(kw_only=True)
class SummaryOptions(TableOptions):
    """The options of `dist-eval summary`."""

    runs: Paths = argument("output folder of a run; with --list, the one folder above them", "RUN")
    list: Path | None = option(None, "list of a job array (see dist-eval job); shows runs without a folder as missing")
    metric: Words = option([], "metrics to show (default: the usual ones)", metavar="NAME")
    sort: str | None = option(
        None, "show the best run by this metric first; for a custom metric, the largest value", metavar="NAME"
    )
    options: bool = option(False, "also show the options that differ between the runs")


COMMAND = Command(
    program="dist-eval summary",
    config=SummaryOptions,
    description="Shows the status of runs: coverage, metrics, and why a run is not complete.",
    examples="Exit status: 0 all are complete; 75 some are not, and running their command again resumes them; "
    "2 an option is wrong; 1 some failed or were never started.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1, 2 or 75 (see `COMMAND`)."""
    return run_command(COMMAND, show, arguments)


def show(options: SummaryOptions) -> int:
    """Prints the table and writes it to files."""
    outcomes = [read_outcome(folder) for folder in _folders(options)]
    metrics = choose_metrics(outcomes, options.metric, options.sort)
    if options.sort:
        outcomes = best_first(outcomes, options.sort)
    print(_render(".txt", outcomes, metrics, Path(), with_options=options.options), flush=True)
    for path in options.write:
        text = _render(path.suffix, outcomes, metrics, path.parent, with_options=options.options)
        with translating_os_errors(RunError, f"--write {path} cannot be written"):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(path, text.encode(), BY_UMASK)
    statuses = {outcome.exit_status for outcome in outcomes}
    return FAILED if FAILED in statuses else STOPPED if STOPPED in statuses else COMPLETE


def _folders(options: SummaryOptions) -> list[Path]:
    if options.list is None:
        # a pattern such as runs/* matches files beside folders
        return [path for path in options.runs if not path.is_file()] or options.runs
    if len(options.runs) > 1:
        raise ConfigError("With --list, name one folder: the one above the folders of its runs.")
    return [options.runs[0] / entry.name for entry in read_sweep(options.list) if entry]


def _render(kind: str, outcomes: Sequence[Outcome], metrics: Sequence[str], folder: Path, *, with_options: bool) -> str:
    """Returns a summary in the format of a suffix; links of a page are relative to its folder."""
    if kind == ".json":
        return json.dumps(to_records(outcomes, metrics), indent=2, allow_nan=False) + "\n"
    if kind == ".csv":
        return _to_csv(to_records(outcomes, metrics))
    from dist_eval.report.html import render_html
    from dist_eval.report.markdown import render_markdown
    from dist_eval.report.naming import distinct_ends, without_directories
    from dist_eval.report.text import render_text

    names = {outcome.folder: str(outcome.folder) for outcome in outcomes}
    if kind == ".html":  # pages are shared, so without directories of this machine
        names = dict(zip(names, distinct_ends([path.resolve() for path in names]), strict=True))
        outcomes = [replace(outcome, reason=without_directories(outcome.reason)) for outcome in outcomes]
    document = describe_summary(outcomes, names, metrics, with_options=with_options, folder=folder)
    return {".html": render_html, ".md": render_markdown, ".txt": render_text}[kind](document)


def _to_csv(records: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, records[0], lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: csv_text(value) if isinstance(value, str) else value for key, value in record.items()})
    return file.getvalue()


if __name__ == "__main__":
    run_program(main)
