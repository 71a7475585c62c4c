"""The state that a resumed tuning continues from: it survives saving and loading, and damage is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dist_eval.errors import RunError
from dist_eval.results.tuning import EpochResults
from dist_eval.tuning.folder import TuningState, pack_state, unpack_state, write_state

EPOCH = EpochResults(epoch=1, loss=0.7, updates=9, seconds=1.5, metrics=None)
STATE = TuningState(epoch=2, updates=7, loss_sum=0.1 + 0.2, examples=9, history=[EPOCH], best=0)
TENSORS = {"head": torch.randn(3, 4), "optimizer.0.step": torch.tensor(7.0)}
LEARNER = {"schedule": {"last_epoch": 7, "_last_lr": [0.1 / 3]}}


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal" / "state.safetensors"
    assert unpack_state(path) is None
    write_state(path, pack_state(TuningState(), {}, {}))
    write_state(path, pack_state(STATE, TENSORS, LEARNER))
    found = unpack_state(path)
    assert found is not None
    state, tensors, learner = found
    assert (state, learner) == (STATE, LEARNER)
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"", b"no safetensors", pack_state(STATE, TENSORS, LEARNER)[:-5]])
def test_a_damaged_state_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"state\.safetensors is damaged .*--overwrite"):
        unpack_state(path)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file")
    with pytest.raises(RunError, match="cannot be written"):
        write_state(tmp_path / "journal" / "state.safetensors", b"")


def test_an_epoch_ends() -> None:
    state = TuningState(epoch=1, updates=3, loss_sum=2.0, examples=8)
    state.end_epoch(EPOCH)
    assert state == TuningState(epoch=2, history=[EPOCH])
