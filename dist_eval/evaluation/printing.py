"""What runs print before and after the answers."""

from __future__ import annotations

from typing import Any

from dist_eval.options.config import EvaluationConfig
from dist_eval.report.page import format_run, report_on
from dist_eval.report.sections import format_selection
from dist_eval.results.inputs import SelectionSummary
from dist_eval.results.run import AnyCompleteRun
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.files import REPORT


def announce_selection(config: EvaluationConfig, selection: SelectionSummary | None) -> None:
    """Prints how many rows will be evaluated, if not all."""
    if words := format_selection(selection):
        precision = config.precision
        wide = f", for intervals of at most ±{precision:g} at {100 * config.confidence:g}%" if precision else ""
        print(f"evaluating {words}{wide}", flush=True)


def announce_complete(folder: EvaluationFolder) -> AnyCompleteRun:
    """Prints that the folder already holds the complete run, and returns its results."""
    results = folder.results()
    assert results is not None, "the folder holds this very run"
    print(
        f"{folder.path} already holds the complete results of this run, finished {results.finished}. Nothing was sent; "
        "--overwrite runs it again.",
        flush=True,
    )
    return results


def show_results(folder: EvaluationFolder, config: Any, *, are_new: bool = True, with_speed: bool = True) -> None:
    """Writes the report on the results in the folder, and prints them."""
    if are_new or not (folder.path / REPORT).exists():
        report_on(folder.path, config.report)
    print(format_run(folder.path, with_speed=with_speed), flush=True)
