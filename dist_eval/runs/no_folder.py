"""What stands in the place of a run's folder where nothing is written."""

from __future__ import annotations

from typing import Any

from dist_eval.results.run import RunHeader
from dist_eval.runs.run_folder import RunFolder


class NoFolder(RunFolder):
    """Stands for the folder of a command that leaves no files."""

    results_name, resume_source, foreign_files = "", "", ()
    is_resumable = is_running = False

    def open(self, attempt: int = 0) -> None:
        """Does nothing."""

    def open_on_host(self) -> None:
        """Does nothing."""

    def fail(self, message: str, **known: Any) -> bool:
        """Does nothing: there is no file to mark."""
        return False

    stop = fail

    def _ended(self, run: RunHeader, **changes: Any) -> RunHeader:
        return run

    def _validate(self, content: Any) -> RunHeader:
        raise ValueError("there is no file with results")
