"""The state that an interrupted tuning resumes from: one file, replaced atomically, without pickle.

It is a safetensors file with the tuned tensors and AdamW's moments; everything else is JSON in its header. The order of
the examples follows from the seed and the epoch, and nothing else is random once tuning has begun, so no state of a
random number generator has to be saved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dist_eval.errors import RunError, one_line, translating_os_errors
from dist_eval.process.files import write_atomically
from dist_eval.process.parsing import parse_json
from dist_eval.results.tuning import EpochResults

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
        """Ends the current epoch."""
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
    advice = "The earlier state is kept: start the same command again once that is fixed."
    with translating_os_errors(RunError, f"{path} cannot be written", advice):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def unpack_state(path: Path) -> tuple[TuningState, dict[str, torch.Tensor], dict[str, Any]] | None:
    """Reads what `write_state` wrote; None if there is no file."""
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
        raise RunError(f"{path} is damaged ({one_line(error)}). Start afresh with --overwrite.") from error
