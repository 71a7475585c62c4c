"""What an interrupted tuning goes on from: one file, replaced as a whole, without pickle.

It is a safetensors file with the tuned tensors and AdamW's moments; everything else is JSON in its header. The order of
the examples follows from the seed and the epoch, and nothing else is drawn at random once tuning has begun, so that
there is no generator whose state would have to be kept.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from dist_eval.errors import RunError
from dist_eval.process.files import write_atomically

_HEADER = "state"


@dataclass
class TuningState:
    """How far a tuning is.

    Attributes:
        epoch: the present one, from 0.
        updates: those that are done in this epoch.
        loss_sum: of this epoch's examples so far.
        examples: of this epoch so far.
        history: one entry for each finished epoch (see `dist_eval.tuning.folder`).
        best: the finished epoch whose checkpoint is the best one, if any was evaluated.
    """

    epoch: int = 0
    updates: int = 0
    loss_sum: float = 0.0
    examples: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None

    def end_epoch(self, entry: dict[str, Any]) -> None:
        """Closes the present epoch."""
        self.history.append(entry)
        self.epoch, self.updates, self.loss_sum, self.examples = self.epoch + 1, 0, 0.0, 0


def pack_state(state: TuningState, tensors: dict[str, torch.Tensor], learner: dict[str, Any]) -> bytes:
    """Packs a state.

    Args:
        state: how far the tuning is.
        tensors: tuned tensors and moments by name.
        learner: the rest of what optimizer, schedule and scaler hold, ready for JSON.
    """
    from safetensors.torch import save

    header = json.dumps({"progress": asdict(state), "learner": learner})
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {_HEADER: header})


def write_state(path: Path, content: bytes) -> None:
    """Writes a packed state.

    Raises:
        RunError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror or error}. What was written before is kept: start the same "
            "command again once that is mended."
        ) from error


def unpack_state(path: Path) -> tuple[TuningState, dict[str, torch.Tensor], dict[str, Any]] | None:
    """Reads what `write_state` wrote; None if there is nothing yet.

    Raises:
        RunError: the file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return TuningState(**header["progress"]), tensors, header["learner"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}). Start afresh with --overwrite.") from error
