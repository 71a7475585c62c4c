"""`python -m dist_eval.summary RUN [RUN ...]`: status and metrics of many runs, in one table.

Names the runs that failed or are incomplete, and those on other data than the first, and sets an exit status for
scripts. It does not test differences between runs; `dist_eval.compare` does.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dist_eval.cluster.run_lists import read_sweep
from dist_eval.errors import ConfigError, EvaluationError, RunError, os_reason, print_error
from dist_eval.process.files import BY_UMASK, write_atomically
from dist_eval.process.programs import COMPLETE, FAILED, STOPPED, WRONG_OPTIONS, ArgumentParser, run_program
from dist_eval.runs.outcome import Outcome, read_outcome
from dist_eval.summary.document import best_first, choose_metrics, describe_summary, to_records
from dist_eval.tables import csv_text

_KINDS = (".csv", ".html", ".json", ".md")


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line's parser."""
    parser = ArgumentParser(
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1, 2 or 75 (see `build_parser`)."""
    options = build_parser().parse_args(arguments)
    try:
        require_known_formats(options.write)
        outcomes = [read_outcome(folder) for folder in _folders(options)]
        metrics = choose_metrics(outcomes, options.metric or (), options.sort)
        if options.sort:
            outcomes = best_first(outcomes, options.sort)
        print(_render(".txt", outcomes, metrics, Path(), with_options=options.options), flush=True)
        for path in options.write:
            text = _render(path.suffix, outcomes, metrics, path.parent, with_options=options.options)
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_atomically(path, text.encode(), BY_UMASK)
            except OSError as error:
                raise RunError(f"--write {path}: cannot be written ({os_reason(error)}).") from error
    except EvaluationError as error:
        print_error(str(error), "dist-eval summary")
        return WRONG_OPTIONS if isinstance(error, ConfigError) else FAILED
    statuses = {outcome.exit_status for outcome in outcomes}
    return FAILED if FAILED in statuses else STOPPED if STOPPED in statuses else COMPLETE


def require_known_formats(files: Sequence[Path]) -> None:
    """Checks the names that `--write` gives; raises ConfigError for an unknown format."""
    for path in files:
        if path.suffix not in _KINDS:
            raise ConfigError(f"--write {path}: the name must end with one of {', '.join(_KINDS)}.")


def _folders(options: argparse.Namespace) -> list[Path]:
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
    if kind == ".html":  # is shared: no directories of this machine
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
