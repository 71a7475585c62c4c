"""The results that a start of a run finds in its folder, and keeps until it is known whose they are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dist_eval.process.files import write_atomically
from dist_eval.results.run import RunHeader


@dataclass(frozen=True)
class FoundResults:
    """The results in a run's folder when it was opened."""

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


def what_is_wrong(path: Path) -> str:
    """Returns that a file is damaged, or missing."""
    return f"{path} is {'damaged' if os.path.lexists(path) else 'missing'}"
