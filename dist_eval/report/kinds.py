"""Chooses the class that shows a run, by its kind. Imports no large library until then."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dist_eval.results.run import AnyCompleteRun, CompleteTasksRun

if TYPE_CHECKING:
    from dist_eval.report.shown import ShownRun


def shown_run(results: AnyCompleteRun, folder: Path = Path()) -> ShownRun:
    """Returns the presentation of a complete run of any kind."""
    from dist_eval.report.evaluation import ShownEvaluation
    from dist_eval.report.tasks import ShownTasks

    return ShownTasks(results, folder) if isinstance(results, CompleteTasksRun) else ShownEvaluation(results, folder)
