"""The folder of a run whose requests a language model answers: tasks of the harness, or prompts.

results.json                the run (see `dist_eval.results.harness`)
predictions.parquet         the generated texts, of a run on prompts
results_DATE.json           the harness' own results, readable by its tools, of a run on tasks
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
from dist_eval.runs.files import PREDICTIONS, REPORT

_SCORING = ("confidence", "bootstrap_iters")  # Options that change nothing of the answers

_DATE = "????-??-??T??-??-??*"
_HARNESS_FILES = (f"results_{_DATE}.json", f"samples_*_{_DATE}.jsonl")  # Patterns of what the harness writes


class RequestsFolder(ResultsFolder):
    """The folder of one such run (see `RunFolder`)."""

    derived_files = (REPORT, PREDICTIONS)

    def recorded(self) -> CompleteHarnessRun | None:
        """Returns the content of `results.json` if the run is complete."""
        results = self._read()
        return results if isinstance(results, CompleteHarnessRun) else None

    @property
    def is_scored_otherwise(self) -> bool:
        """Whether the complete run in the folder has other intervals than these options ask for, or lacks a file."""
        recorded = self.recorded()
        if recorded is None or any(recorded.config.get(name) != self.options.get(name) for name in _SCORING):
            return True
        return not all((self.path / name).exists() for name in recorded.files.names)

    def save(self, results: HarnessResults) -> None:
        """Marks the run as complete.

        Raises:
            RunError: `results.json` cannot be written.
        """
        recorded = self.recorded()
        for name in {*recorded.files.names} - {*results.files.names} if recorded else ():
            (self.path / name).unlink(missing_ok=True)
        changes = {"status": "complete", "error": None, "finished": now(), "config": self.options}
        advice = "All answers are in its journal: start the same command again once that is fixed."
        with translating_os_errors(RunError, f"The results cannot be written to {self.path}", advice):
            self._write(CompleteHarnessRun(**{**self._header(), **changes, **dict(results)}))

    def _derived(self) -> list[Path]:
        recorded = self.recorded()
        if recorded:
            return [*super()._derived(), *(self.path / name for name in recorded.files.names)]
        # those of a run that ended before it had named them, or whose results are damaged
        ours = _HARNESS_FILES if (self.path / self.results_name).exists() else ()
        return [*super()._derived(), *(path for pattern in ours for path in self.path.glob(pattern))]
