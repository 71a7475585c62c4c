"""The folder of an evaluation on a dataset, on prompts or on tasks of the harness.

results.json                the run (see `dist_eval.results.run`)
predictions.parquet         its samples (see `dist_eval.runs.saved_samples`), except for tasks
*.png                       plots of an evaluation on a dataset
results_DATE.json           for tasks: the harness' own results, readable by its tools
samples_TASK_DATE.jsonl     for each task: its documents with the model's answers
journal/                    finished batches
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dist_eval.errors import RunError, error_summary, print_error, translating_os_errors
from dist_eval.metrics.predictions import Predictions
from dist_eval.results.run import RUN, AnyCompleteRun, CompleteRun, CompleteTasksRun, EvaluationResults, RunHeader
from dist_eval.results.tasks import TasksResults
from dist_eval.runs.environment import now
from dist_eval.runs.files import PREDICTIONS, REPORT, RESULTS, TUNING_RESULTS
from dist_eval.runs.plots import PLOTS, RELIABILITY, draw_predictions, draw_reliability, plot_name, write_png
from dist_eval.runs.run_folder import RunFolder
from dist_eval.runs.saved_samples import Samples, write_samples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALL_KEPT = "All answers are in its journal: fix the cause and start the same command again."

# Options of a run on tasks that do not affect the answers
_SCORING = ("confidence", "bootstrap_iters")

_DATE = "????-??-??T??-??-??*"
_HARNESS_FILES = (f"results_{_DATE}.json", f"samples_*_{_DATE}.jsonl")  # patterns of what the harness writes


class EvaluationFolder(RunFolder):
    """The folder of one evaluation (see `RunFolder`)."""

    results_name, resume_source, records = RESULTS, "the journal", RUN
    foreign_files = (TUNING_RESULTS,)
    derived_files = (PREDICTIONS, REPORT, *PLOTS)

    def results(self) -> AnyCompleteRun | None:
        """Returns the content of `results.json` if the run is complete."""
        results = self._read()
        return results if isinstance(results, AnyCompleteRun) else None

    def _tables(self) -> list[str]:
        """Returns the names of the tables that a complete run has beside `results.json`."""
        results = self.results()
        return results.tables if results else []

    def complete(self, samples: Samples | None, results: EvaluationResults | TasksResults) -> None:
        """Writes all files of a complete run; the plots come last, because no result depends on them.

        The samples are in dataset order; None for tasks, for which the harness writes documents.
        """
        record = CompleteRun if isinstance(results, EvaluationResults) else CompleteTasksRun
        changes = {"status": "complete", "error": None, "finished": now(), "config": self.options}
        with translating_os_errors(RunError, f"The results cannot be written to {self.path}", _ALL_KEPT):
            for name in {*self._tables()} - {*results.tables}:
                (self.path / name).unlink(missing_ok=True)
            if samples is not None:
                write_samples(self.path / PREDICTIONS, samples)
            self._write(record(**{**self._header(), **changes, **dict(results)}))
            if self._rescored:
                self._rescored.save(self.path)
        if isinstance(results, EvaluationResults) and isinstance(samples, Predictions):
            self._draw(plot_name(results.problem_type), lambda: draw_predictions(results, samples))
            self._draw_reliability(results)

    def revise(self, results: AnyCompleteRun, samples: Samples) -> None:
        """Replaces the results of a complete run and the table of its samples (see `complete`)."""
        with translating_os_errors(RunError, f"The results cannot be written to {self.path}"):
            write_samples(self.path / PREDICTIONS, samples)
            self._write(results)
        if isinstance(results, CompleteRun):
            self._draw_reliability(results)

    def _draw_reliability(self, results: EvaluationResults) -> None:
        calibration = results.calibration
        if calibration is not None:
            self._draw(RELIABILITY, lambda: draw_reliability(calibration))

    def _draw(self, name: str, draw: Callable[[], Figure]) -> None:
        try:
            write_png(self.path / name, draw())
        except Exception as error:  # such as missing fonts or memory; the numbers are valid anyway
            print_error(f"{name} could not be drawn ({error_summary(error)}); all numbers are in {RESULTS}.")

    @property
    def is_scored_otherwise(self) -> bool:
        """Whether the complete run on tasks in the folder lacks a file, or has other intervals than the options ask."""
        earlier = self.results()
        if not isinstance(earlier, CompleteTasksRun):
            return True
        is_on_tasks = earlier.dataset is None  # texts are scored again from their table
        if is_on_tasks and any(earlier.config.get(name) != self.options.get(name) for name in _SCORING):
            return True
        return not all((self.path / name).exists() for name in earlier.files.names)

    def _has_failed_examples(self, results: RunHeader) -> bool:
        return isinstance(results, AnyCompleteRun) and results.coverage.failed > 0

    def _derived(self) -> list[Path]:
        if earlier := self._tables():
            return [*super()._derived(), *(self.path / name for name in earlier)]
        # files of a run that ended before it named them, or whose results are damaged
        is_on_tasks = "tasks" in self.options and (self.path / RESULTS).exists()
        patterns = _HARNESS_FILES if is_on_tasks else ()
        return [*super()._derived(), *(path for pattern in patterns for path in self.path.glob(pattern))]
