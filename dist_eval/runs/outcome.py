"""The outcome of a run, for schedulers and scripts: the status in its folder.

torchrun exits with 1 regardless of its ranks' statuses, so the status of a whole run is read from `results.json` (for
tuning: `tuning.json`). Independent of any scheduler, and imports no large library.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dist_eval.errors import one_line
from dist_eval.process.parsing import parse_json
from dist_eval.process.programs import COMPLETE, FAILED, STOPPED
from dist_eval.runs.digests import NOT_AS_WRITTEN, is_intact
from dist_eval.runs.files import CHECKS, JOURNAL, RESULTS, TUNING_RESULTS
from dist_eval.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from dist_eval.results.run import CompleteRun, EndedRun, RunningRun
    from dist_eval.results.tuning import StartedTuning, TuningRun

    Results: TypeAlias = RunningRun | EndedRun | CompleteRun | StartedTuning | TuningRun

_FINISHED = ("*.batches", "*.safetensors")  # files in `journal/` that grow or change with progress


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run, as its folder records it."""

    folder: Path  # the run's folder
    status: str  # "complete", "incomplete", "failed", "running" (or killed), or "missing"
    reason: str = ""  # why it is not complete, for people; empty if unknown
    transient: bool = True  # whether the same command may get further without any change
    version: tuple[int, ...] = ()  # changes whenever `results.json` is written
    progress: frozenset[tuple[str, int, int]] = frozenset()  # changes whenever work that a resumed run skips is done
    # content of `results.json` or `tuning.json`; None if it cannot be read or has another format
    results: Results | None = field(default=None, repr=False)

    @property
    def exit_status(self) -> int:
        """0 if the run is complete, 75 if the same command would resume it, else 1."""
        if self.status == "complete":
            return COMPLETE
        resumes = self.status in ("incomplete", "running") or (self.status == "failed" and self.transient)
        return STOPPED if resumes else FAILED

    @property
    def problem(self) -> str:
        """Why there are no results: status, reason if known, and whether it resumes; empty if there are results."""
        if self.status == "complete":
            return "" if self.results else "complete, but not in the format of this version: run it again"
        parts = [f"{self.status}, {self.reason}" if self.reason else self.status]
        if self.exit_status == STOPPED and "to resume" not in self.reason:
            parts = [parts[0].removesuffix("."), "running the same command again resumes it"]
        return "; ".join(parts)


def read_outcome(folder: Path) -> Outcome:
    """Reads the outcome of a run from its folder; an unreadable folder is also an outcome."""
    path = next((folder / name for name in (RESULTS, TUNING_RESULTS) if (folder / name).exists()), folder / RESULTS)
    try:
        with path.open(encoding="utf-8") as file:  # before fstat: only opening refreshes a network file system
            stat, content = os.fstat(file.fileno()), parse_json(file.read())
    except FileNotFoundError:
        return Outcome(folder, "missing", f"there is no {path}{_what_else_is_in(folder)}")
    except (OSError, ValueError) as error:
        return Outcome(folder, "failed", f"{path} cannot be read: {one_line(error)}", transient=False)
    if not isinstance(content, dict) or "status" not in content or not isinstance(content.get("error") or {}, dict):
        return Outcome(folder, "failed", f"{path} was not written by a run", transient=False)
    if content.get("schema_version") == SCHEMA_VERSION and not is_intact(content):
        return Outcome(folder, "failed", f"{path} {NOT_AS_WRITTEN}", progress=_progress(folder))
    failure = content.get("error") or {}
    return Outcome(
        folder,
        content["status"],
        reason=failure.get("message", ""),
        transient=failure.get("transient", content["status"] != "failed"),
        version=(stat.st_ino, stat.st_mtime_ns, stat.st_size),
        progress=_progress(folder),
        results=_validated(content, path.name),
    )


def _what_else_is_in(folder: Path) -> str:
    """Says what a folder without a run has; empty if nothing of ours."""
    if (folder / CHECKS).exists():
        return "; only `dist-eval doctor` was run"
    runs = sorted(path.parent for path in folder.glob(f"*/{RESULTS}"))
    return f"; name the runs in it, such as {runs[0]}" if runs else ""


def _validated(content: dict[str, Any], name: str) -> Results | None:
    from dist_eval.results.run import RUN
    from dist_eval.results.tuning import TUNING

    adapter: TypeAdapter[Any] = RUN if name == RESULTS else TUNING
    try:
        return adapter.validate_python(content)
    except ValueError:
        return None


def _progress(folder: Path) -> frozenset[tuple[str, int, int]]:
    found = set()
    for path in (path for pattern in _FINISHED for path in (folder / JOURNAL).glob(pattern)):
        with suppress(OSError):  # a new start may be removing it
            stat = path.stat()
            found.add((path.name, stat.st_size, stat.st_mtime_ns))
    return frozenset(found)
