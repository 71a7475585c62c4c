"""The folder of an evaluation: `results.json`, and the files that are made when the run is complete.

The content of `results.json` is a record of `dist_eval.results.run`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dist_eval.errors import RunError, error_summary, print_error, translating_os_errors
from dist_eval.metrics.predictions import Predictions, PredictionsLike
from dist_eval.results.run import RUN, CompleteRun, EndedRun, EvaluationResults, RunHeader
from dist_eval.runs.environment import now
from dist_eval.runs.files import PREDICTIONS, REPORT, RESULTS, TUNING_RESULTS
from dist_eval.runs.plots import PLOTS, RELIABILITY, draw_predictions, draw_reliability, plot_name, write_png
from dist_eval.runs.run_folder import RunFolder
from dist_eval.runs.saved_predictions import write_predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ResultsFolder(RunFolder):
    """The folder of a run whose answers are in a journal, and whose results are in `results.json`."""

    results_name, resume_source = RESULTS, "the journal"
    foreign_files = (TUNING_RESULTS,)

    def _ended(self, run: RunHeader, **changes: Any) -> RunHeader:
        return EndedRun(**{**dict(run), **changes})

    def _validate(self, content: Any) -> RunHeader:
        return RUN.validate_python(content)


class EvaluationFolder(ResultsFolder):
    """The folder of one evaluation (see `RunFolder`)."""

    derived_files = (PREDICTIONS, REPORT, *PLOTS)

    def results(self) -> CompleteRun | None:
        """Returns the content of `results.json` if the run is complete."""
        results = self._read()
        return results if isinstance(results, CompleteRun) else None

    def complete(
        self,
        predictions: Predictions,
        results: EvaluationResults,
        groups: np.ndarray | None = None,
    ) -> None:
        """Writes all files of a complete run; the plots come last, because no result depends on them.

        Args:
            predictions: one for each example, in dataset order.
            results: the sections of `results.json`.
            groups: the group of each prediction, int64 of shape [n]; None if examples are not grouped.

        Raises:
            RunError: the files cannot be written.
        """
        advice = "All predictions are in its journal: start the same command again once that is fixed."
        with translating_os_errors(RunError, f"The results cannot be written to {self.path}", advice):
            write_predictions(self.path / PREDICTIONS, predictions, groups)
            changes = {"status": "complete", "error": None, "finished": now(), "config": self.options}
            self._write(CompleteRun(**{**self._header(), **changes, **dict(results)}))
        self._draw(plot_name(results.problem_type), lambda: draw_predictions(results, predictions))
        self._draw_reliability(results)

    def _draw_reliability(self, results: EvaluationResults) -> None:
        calibration = results.calibration
        if calibration is not None:
            self._draw(RELIABILITY, lambda: draw_reliability(calibration))

    def _draw(self, name: str, draw: Callable[[], Figure]) -> None:
        try:
            write_png(self.path / name, draw())
        except Exception as error:  # fonts, memory: whatever it is, the numbers are valid
            print_error(f"{name} could not be drawn ({error_summary(error)}); all numbers are in {RESULTS}.")

    def revise(
        self, results: CompleteRun, predictions: PredictionsLike | None = None, groups: np.ndarray | None = None
    ) -> None:
        """Replaces the results of a complete run.

        Args:
            results: the whole content of `results.json`.
            predictions: rewritten first, with their groups; None if they do not change.
            groups: the group of each prediction, int64 of shape [n]; None if examples are not grouped.

        Raises:
            RunError: the results cannot be written.
        """
        with translating_os_errors(RunError, f"The results cannot be written to {self.path}"):
            if predictions is not None:
                write_predictions(self.path / PREDICTIONS, predictions, groups)
            self._write(results)
        if predictions is not None:
            self._draw_reliability(results)

    def _has_failed_examples(self, results: RunHeader) -> bool:
        return isinstance(results, CompleteRun) and results.coverage.failed > 0
