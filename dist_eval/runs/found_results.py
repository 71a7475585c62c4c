"""Earlier results in a run's folder, and whether a new start may resume from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dist_eval.process.files import write_atomically
from dist_eval.results.run import RunHeader
from dist_eval.runs.files import FINGERPRINT, JOURNAL
from dist_eval.runs.fingerprint import Fingerprint


@dataclass(frozen=True)
class FoundResults:
    """The results in a run's folder when it was opened; kept until it is known which run they belong to."""

    content: bytes | None = None  # of the file; None if there was none
    results: RunHeader | None = None  # parsed; None if there was no file, or it is damaged
    damaged: Path | None = None  # a damaged or missing file (results or a table); None if all are intact

    @property
    def was_complete(self) -> bool:
        """Whether they belong to a complete run."""
        return self.results is not None and self.results.status == "complete"

    @property
    def are_kept(self) -> bool:
        """Whether they stay until they are known to be this run's: nothing else of that run may be left."""
        return self.was_complete or self.damaged is not None

    def restore(self, path: Path) -> None:
        """Restores the file."""
        if self.content is None:
            path.unlink(missing_ok=True)
        elif path.read_bytes() != self.content:
            write_atomically(path, self.content)


@dataclass(frozen=True)
class Claim:
    """A start of a run, and the contents of its folder."""

    folder: Path  # the run's folder
    fingerprint: Fingerprint  # of this run
    earlier: Fingerprint | None  # of the results in the folder; None if unknown
    found: FoundResults
    has_own_batches: bool  # whether the journal has batches of this run, judging by file names
    is_resumable: bool  # whether there are finished batches of any run
    has_derived_files: bool  # whether there are files that are made at the end of a run

    @property
    def why_unknown(self) -> str:
        """Why the fingerprint of the folder's results is unknown."""
        return what_is_wrong(self.folder / JOURNAL / FINGERPRINT)

    @property
    def is_scored_otherwise(self) -> bool:
        """Whether the folder holds this run's answers, but scored by another definition or code of tasks."""
        return self.earlier is not None and self.fingerprint.scores_otherwise(self.earlier)

    @property
    def objection(self) -> str:
        """What the folder holds that the run may neither resume nor replace; empty if there is nothing."""
        found, part = self.found, "the results" if self.found.was_complete else "a part"
        changed = self.fingerprint.changed(self.earlier) if self.earlier else []
        if changed and not self.is_scored_otherwise:
            *others, last = [f"the {name}" for name in changed]
            return f"{part} of another run: it differs in {', '.join(others)}{' and ' if others else ''}{last}"
        is_unknown = self.earlier is None and not self.has_own_batches
        if is_unknown and self.is_resumable:
            return f"a part of an unknown run: {self.why_unknown}"
        if is_unknown and found.was_complete:
            return f"the results of a complete run, but no {JOURNAL} that identifies it"
        if found.damaged and (self.has_derived_files or found.was_complete) and not self.is_resumable:
            return f"a damaged run: {what_is_wrong(found.damaged)}, and there is nothing to restore it from"
        return ""


def what_is_wrong(path: Path) -> str:
    """Says that a file is damaged or missing."""
    return f"{path} is {'damaged' if os.path.lexists(path) else 'missing'}"
