"""Describes a complete run, writes its page `report.html`, and formats its printed results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dist_eval.errors import one_line, print_error
from dist_eval.printable import printable_lines
from dist_eval.process.files import BY_UMASK, PRIVATE, write_atomically
from dist_eval.report.document import Document, ReportOptions
from dist_eval.report.html import render_html
from dist_eval.report.kinds import shown_run
from dist_eval.results.run import AnyCompleteRun
from dist_eval.runs.files import REPORT, RESULTS
from dist_eval.runs.reading import read_run


def describe_run(folder: Path, options: ReportOptions | None = None, results: AnyCompleteRun | None = None) -> Document:
    """Describes a complete run of any kind; reads its results unless given."""
    return shown_run(results or read_run(folder), folder).describe(options or ReportOptions())


def write_report(folder: Path, options: ReportOptions | None = None, path: Path | None = None) -> Path:
    """Writes the report of a complete run.

    It contains texts of the dataset only on request, because reports are shared more freely than datasets.
    """
    page = render_html(describe_run(folder, options))
    write_atomically(path or folder / REPORT, page.encode(errors="backslashreplace"), BY_UMASK if path else PRIVATE)
    return path or folder / REPORT


def format_run(folder: Path, *, with_speed: bool = True) -> str:
    """Formats a complete run of any kind for the terminal, with the names of its files."""
    from dist_eval.report.text import render_text

    document = describe_run(folder)
    if not with_speed:
        document = replace(document, facts=document.facts[:1])
    names = [*document.files, *([REPORT] if (folder / REPORT).exists() else [])]
    files = "\n".join(f"  {folder / name}" for name in names)
    return printable_lines(f"\n{render_text(document)}\nfiles:\n{files}")


def report_on(folder: Path, wanted: str) -> None:
    """Replaces the report of a run as `--report` asks; a failure is printed but does not fail the run."""
    try:
        (folder / REPORT).unlink(missing_ok=True)  # it shows previous results
        if wanted != "none":
            write_report(folder, ReportOptions(texts=wanted == "texts"))
    except Exception as error:  # such as a full disk, or a dataset that was moved
        print_error(f"{REPORT} could not be written ({one_line(error)}); all numbers are in {RESULTS}.")
