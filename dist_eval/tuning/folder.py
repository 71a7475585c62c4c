"""A tuning's folder: checkpoints, the state that a resumed run continues from, and `tuning.json`.

tuning.json    options, versions, epochs, and how the tuning ended (see `dist_eval.results.tuning`)
best/          the checkpoint of the best epoch, only with evaluation data
last/          the checkpoint of the last finished epoch
journal/       state.safetensors and fingerprint.json: what a resumed run reads
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dist_eval.errors import RunError, translating_os_errors
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.process.files import private_files
from dist_eval.results.tuning import TUNING, TuningProgress, TuningRank, TuningRun
from dist_eval.runs.environment import now
from dist_eval.runs.files import JOURNAL, RESULTS, TUNING_RESULTS
from dist_eval.runs.run_folder import RunFolder

STATE = "state.safetensors"
BEST, LAST = "best", "last"


class TuningFolder(RunFolder):
    """The folder of one tuning (see `RunFolder`)."""

    results_name, resume_source, records = TUNING_RESULTS, "its folder", TUNING
    foreign_files = (RESULTS, BEST, LAST)

    @property
    def state(self) -> Path:
        """The file that a resumed run continues from."""
        return self.path / JOURNAL / STATE

    @property
    def is_resumable(self) -> bool:
        """Whether a new start would find finished updates."""
        return self.state.is_file()

    def save_checkpoint(self, name: str, tuned: TunedCheckpoint, tokenizer: Any) -> None:
        """Writes a checkpoint with its tokenizer, and replaces the old one by it."""
        new, old, place = self.path / f".{name}.new", self.path / f".{name}.old", self.path / name
        with translating_os_errors(RunError, f"The checkpoint {place} cannot be written"):
            for leftover in (new, old):
                shutil.rmtree(leftover, ignore_errors=True)
            new.mkdir()  # it is no link to another folder
            with private_files():
                tuned.save(new)
                tokenizer.save_pretrained(new)
            if place.exists():
                place.rename(old)
            new.rename(place)
            shutil.rmtree(old, ignore_errors=True)

    def update_results(self, progress: TuningProgress, **changes: Any) -> None:
        """Replaces the sections of `tuning.json` after an epoch."""
        with translating_os_errors(RunError, f"{self.path / TUNING_RESULTS} cannot be written"):
            self._write(TuningRun(**{**self._header(), **dict(progress), **changes}))

    def finish(self, progress: TuningProgress, ranks: list[TuningRank]) -> None:
        """Replaces the sections of `tuning.json`, and marks the run as complete."""
        self.update_results(progress, ranks=ranks, status="complete", finished=now())

    def _forget(self) -> None:
        super()._forget()
        self.state.unlink(missing_ok=True)
        for name in (BEST, LAST):
            for place in (name, f".{name}.new", f".{name}.old"):
                shutil.rmtree(self.path / place, ignore_errors=True)
