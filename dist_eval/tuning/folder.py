"""A tuning's folder: checkpoints, the state that a resumed run continues from, and `tuning.json`.

tuning.json    options, versions, epochs, and status (see `dist_eval.results.tuning`)
best/          the checkpoint of the best epoch, only with evaluation data
last/          the checkpoint of the last finished epoch
journal/       state.safetensors and fingerprint.json, which a resumed run reads

The state has the tuned tensors and AdamW's moments, and everything else as JSON in its header. The order of the
examples follows from the seed and the epoch, and nothing else is random after the start, so no generator's state is
saved.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dist_eval.errors import RunError, one_line, translating_os_errors
from dist_eval.petals.base_model.weights import WEIGHTS_FILE
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.process.files import private_files, write_atomically
from dist_eval.process.parsing import parse_json
from dist_eval.results.tuning import TUNING, EpochResults, TuningProgress, TuningRank, TuningRun
from dist_eval.runs.environment import now
from dist_eval.runs.files import JOURNAL, RESULTS, TUNING_RESULTS
from dist_eval.runs.run_folder import RunFolder

_HEADER = "state"


@dataclass
class TuningState:
    """The progress of a tuning."""

    epoch: int = 0  # the current epoch, from 0
    updates: int = 0  # number of updates made in this epoch
    loss_sum: float = 0.0  # sum of the losses of this epoch's examples so far, in nats
    examples: int = 0  # number of this epoch's examples so far
    history: list[EpochResults] = field(default_factory=list)  # one entry for each finished epoch (see `EpochResults`)
    best: int | None = None  # the finished epoch with the best checkpoint, from 0; None if none was evaluated

    def end_epoch(self, entry: EpochResults) -> None:
        self.history.append(entry)
        self.epoch, self.updates, self.loss_sum, self.examples = self.epoch + 1, 0, 0.0, 0


def pack_state(state: TuningState, tensors: dict[str, torch.Tensor], learner: dict[str, Any]) -> bytes:
    """Packs a state."""
    from safetensors.torch import save

    progress = {**vars(state), "history": [entry.to_json() for entry in state.history]}
    header = json.dumps({"progress": progress, "learner": learner})
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {_HEADER: header})


def write_state(path: Path, content: bytes) -> None:
    """Writes a packed state."""
    advice = "The previous state is unchanged: fix this and start the same command again."
    with translating_os_errors(RunError, f"{path} cannot be written", advice):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def unpack_state(path: Path) -> tuple[TuningState, dict[str, torch.Tensor], dict[str, Any]] | None:
    """Reads the file of `write_state`; None if it does not exist."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = parse_json(file.metadata()[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        history = [EpochResults(**entry) for entry in header["progress"]["history"]]
        return TuningState(**{**header["progress"], "history": history}), tensors, header["learner"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({one_line(error)}). Start over with --overwrite.") from error


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
        return self.state.is_file()

    def stage_checkpoint(self, name: str, epoch: int, tuned: TunedCheckpoint, tokenizer: Any) -> None:
        """Writes the checkpoint of an epoch with its tokenizer, for `place_checkpoints`."""
        staged = self._staged(name, epoch)
        with translating_os_errors(RunError, f"The checkpoint {self.path / name} cannot be written"):
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir()  # not a link to another folder
            with private_files():
                tuned.save(staged)
                tokenizer.save_pretrained(staged)

    def place_checkpoints(self, epochs: Mapping[str, int | None]) -> None:
        """Replaces checkpoints by the staged ones of some epochs, by name, and removes what else is left of staging.

        Call it once the saved state names these epochs, and after a restart, which may follow a kill between the two.
        """
        for name, epoch in epochs.items():
            place, old = self.path / name, self.path / f".{name}.old"
            with translating_os_errors(RunError, f"The checkpoint {place} cannot be written"):
                if epoch is not None and (staged := self._staged(name, epoch)).is_dir():
                    if place.exists():
                        shutil.rmtree(old, ignore_errors=True)
                        place.rename(old)
                    staged.rename(place)
                for leftover in (old, *self.path.glob(f".{name}.*.new")):
                    shutil.rmtree(leftover, ignore_errors=True)

    def _staged(self, name: str, epoch: int) -> Path:
        return self.path / f".{name}.{epoch}.new"

    def describe(self, entry: EpochResults) -> str:
        """Returns a line about an epoch."""
        loss = "undefined" if entry.loss is None else format(entry.loss, ".4f")
        line = f"epoch {entry.epoch} of {self.options['epochs']}: loss {loss}"
        if not entry.metrics:
            return line
        for name in dict.fromkeys(("accuracy", str(self.options["best_metric"]))):
            value = entry.metrics[name]
            line += f", {name} {'undefined' if value is None else format(value, '.4f')}"
        return line + " (evaluation data)"

    def show_checkpoints(self) -> None:
        """Prints the checkpoints of the complete run, which must not have been removed."""
        results = self._read()
        assert isinstance(results, TuningRun), "the run is complete"
        shown = {LAST: results.epochs[-1]}
        if results.best:
            shown[BEST] = results.epochs[results.best.epoch - 1]
        for name, entry in shown.items():
            if not (self.path / name / WEIGHTS_FILE).is_file():
                raise RunError(
                    f"{self.path / name} has no {WEIGHTS_FILE}, although the run is complete. Restore it, or start "
                    "afresh with --overwrite."
                )
            print(f"{name}: {self.path / name} ({self.describe(entry)})", flush=True)

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
            shutil.rmtree(self.path / name, ignore_errors=True)
        self.place_checkpoints({BEST: None, LAST: None})
