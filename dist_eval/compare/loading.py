"""Loads runs of any kind to compare them."""

from __future__ import annotations

from pathlib import Path

from dist_eval.compare.comparison import ComparedRun
from dist_eval.compare.evaluations import ComparedEvaluation
from dist_eval.compare.tasks import ComparedTasks
from dist_eval.results.run import CompleteTasksRun
from dist_eval.runs.reading import read_run


def load_run(folder: Path) -> ComparedRun:
    """Loads a complete run of any kind from its folder."""
    results = read_run(folder)
    if isinstance(results, CompleteTasksRun):
        return ComparedTasks(folder, results)
    return ComparedEvaluation.load(folder, results)
