"""What a start of a run finds in its folder: the results of an earlier one, and whether it may go on from there."""

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
    """The results in a run's folder when it was opened, which are kept until it is known whose they are."""

    content: bytes | None = None  # of their file; None if there was none
    results: RunHeader | None = None  # the same; None if there was none, or it is damaged
    # a file of the run that is damaged, or missing: that of the results, or a table; None if all are intact
    damaged: Path | None = None

    @property
    def was_complete(self) -> bool:
        """Whether they are those of a complete run."""
        return self.results is not None and self.results.status == "complete"

    @property
    def are_kept(self) -> bool:
        """Whether they stay until it is known that they are this run's: they, or what is left of them, may be all."""
        return self.was_complete or self.damaged is not None

    def restore(self, path: Path) -> None:
        """Makes their file what it was."""
        if self.content is None:
            path.unlink(missing_ok=True)
        elif path.read_bytes() != self.content:
            write_atomically(path, self.content)


@dataclass(frozen=True)
class Claim:
    """A start of a run, and what its folder holds."""

    folder: Path  # the run's folder
    fingerprint: Fingerprint  # what the results of the run depend on
    earlier: Fingerprint | None  # what those in the folder depend on; None if that is not known
    found: FoundResults
    has_own_batches: bool  # whether the names of files in the journal say that they hold batches of this run
    is_resumable: bool  # whether there are finished batches, of whichever run
    has_derived_files: bool  # whether there are files that are made at the end of a run

    @property
    def why_unknown(self) -> str:
        """Why it is not known what the folder's results depend on."""
        return what_is_wrong(self.folder / JOURNAL / FINGERPRINT)

    @property
    def objection(self) -> str:
        """What the folder holds that the run may neither continue nor replace; empty if there is nothing."""
        found, part = self.found, "the results" if self.found.was_complete else "a part"
        if changed := self.fingerprint.changed(self.earlier) if self.earlier else []:
            return f"{part} of another run: what differs is the {' and the '.join(changed)}"
        is_unknown = self.earlier is None and not self.has_own_batches
        if is_unknown and self.is_resumable:
            return f"a part of a run, but it is not known of which: {self.why_unknown}"
        if is_unknown and found.was_complete:
            return f"the results of a complete run, but no {JOURNAL} that identifies it"
        if found.damaged and (self.has_derived_files or found.was_complete) and not self.is_resumable:
            return f"a run of which {what_is_wrong(found.damaged)}, and nothing that it could be made again from"
        return ""


def what_is_wrong(path: Path) -> str:
    """Returns that a file is damaged, or missing."""
    return f"{path} is {'damaged' if os.path.lexists(path) else 'missing'}"
