"""The folder of a run on tasks of the harness: `results.json`, and the harness' own files.

results.json                the run (see `dist_eval.results.harness`)
results_DATE.json           the harness' own results, readable by its tools
samples_TASK_DATE.jsonl     its documents with the model's answers, of each task
journal/                    finished batches
"""

from __future__ import annotations

from pathlib import Path

from dist_eval.errors import RunError, translating_os_errors
from dist_eval.results.harness import HarnessResults
from dist_eval.results.run import CompleteHarnessRun
from dist_eval.runs.environment import now
from dist_eval.runs.evaluation_folder import ResultsFolder
from dist_eval.runs.files import REPORT, TIMELINE

_SCORING = ("confidence", "bootstrap_iters")
"""Options that change nothing of the answers."""

_OF_THE_HARNESS = ("results_*.json", "samples_*.jsonl")


class HarnessFolder(ResultsFolder):
    """The folder of one run on tasks of the harness (see `RunFolder`)."""

    derived_files = (TIMELINE, REPORT)

    def recorded(self) -> CompleteHarnessRun | None:
        """Returns the content of `results.json` if the run is complete."""
        results = self._read()
        return results if isinstance(results, CompleteHarnessRun) else None

    @property
    def is_scored_otherwise(self) -> bool:
        """Whether the complete run in the folder has other intervals or standard errors than these options ask for."""
        recorded = self.recorded()
        return recorded is None or any(recorded.config[name] != self.options[name] for name in _SCORING)

    def save(self, results: HarnessResults) -> None:
        """Marks the run as complete.

        Raises:
            RunError: `results.json` cannot be written.
        """
        for path in self._of_the_harness():
            if path.name not in (results.files.results, *results.files.samples.values()):
                path.unlink(missing_ok=True)  # of an earlier start
        changes = {"status": "complete", "error": None, "finished": now(), "config": self.options}
        advice = "All answers are in its journal: start the same command again once that is fixed."
        with translating_os_errors(RunError, f"The results cannot be written to {self.path}", advice):
            self._write(CompleteHarnessRun(**{**self._header(), **changes, **dict(results)}))

    def _begin(self) -> None:
        for path in self._of_the_harness():
            path.unlink(missing_ok=True)
        super()._begin()

    def _of_the_harness(self) -> list[Path]:
        return [path for pattern in _OF_THE_HARNESS for path in self.path.glob(pattern)]
