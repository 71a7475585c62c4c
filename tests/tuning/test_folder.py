"""A tuning's folder, and the state in it: what is damaged costs no state and no checkpoint."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from samples import files_below

from dist_eval import demo
from dist_eval.data.tokenizers import load_tokenizer
from dist_eval.errors import RunError
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.results.tuning import EpochResults
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.tuning.folder import TuningFolder, TuningState, pack_state, unpack_state, write_state

FINGERPRINT = Fingerprint({"dataset": "a"})


def begun(path: Path) -> TuningFolder:
    """A tuning with a state and a checkpoint."""
    folder = TuningFolder(path, {"seed": 0})
    folder.open()
    assert folder.claim(FINGERPRINT)
    folder.state.write_bytes(b"state")
    (path / "last").mkdir()
    (path / "last" / "model.safetensors").write_bytes(b"tensors")
    folder.close()
    return folder


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"dataset": "a", "digest": "0"}'])
def test_a_state_of_unknown_origin_is_neither_used_nor_removed(tmp_path: Path, content: str | None) -> None:
    begun(tmp_path)
    path = tmp_path / "journal" / "fingerprint.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    before = files_below(tmp_path)
    again = TuningFolder(tmp_path, {"seed": 0})
    again.open()
    with pytest.raises(RunError, match=r"fingerprint\.json is (missing|damaged).*--output.*--overwrite"):
        again.claim(FINGERPRINT)
    again.close()
    assert files_below(tmp_path) == before
    fresh = TuningFolder(tmp_path, {"seed": 0}, overwrite=True)
    fresh.open()
    assert fresh.claim(FINGERPRINT)
    assert not fresh.state.exists()
    assert not (tmp_path / "last").exists()
    fresh.close()


def test_a_checkpoint_is_private_and_never_behind_a_link(tmp_path: Path) -> None:
    folder = TuningFolder(tmp_path, {"seed": 0})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".last.0.new").symlink_to(tmp_path / "elsewhere")
    tuned, tokenizer = TunedCheckpoint.load(demo.CHECKPOINT), load_tokenizer(str(demo.BASE_MODEL))
    with pytest.raises(RunError, match=r"checkpoint .*last cannot be written: it is a file"):
        folder.stage_checkpoint("last", 0, tuned, tokenizer)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    before = os.umask(0)
    try:
        folder.stage_checkpoint("best", 0, tuned, tokenizer)
        folder.place_checkpoints({"best": 0})
    finally:
        os.umask(before)
    assert TunedCheckpoint.load(tmp_path / "best").label_names == tuned.label_names
    assert [path for path in (tmp_path / "best").iterdir() if path.stat().st_mode & 0o077] == []


def test_a_checkpoint_is_in_its_place_once_the_state_names_its_epoch(tmp_path: Path) -> None:
    folder = TuningFolder(tmp_path, {"seed": 0})
    tuned, tokenizer = TunedCheckpoint.load(demo.CHECKPOINT), load_tokenizer(str(demo.BASE_MODEL))

    def stage(epoch: int) -> None:
        folder.stage_checkpoint("best", epoch, replace(tuned, head=torch.full_like(tuned.head, epoch)), tokenizer)

    def placed() -> float:
        return float(TunedCheckpoint.load(tmp_path / "best").head[0, 0])

    stage(1)
    folder.place_checkpoints({"best": 1})
    stage(2)  # killed before the state was saved
    folder.place_checkpoints({"best": 1})
    assert placed() == 1
    stage(3)
    (tmp_path / "best").rename(tmp_path / ".best.old")  # killed after the state was saved, between two renames
    folder.place_checkpoints({"best": 3})
    assert placed() == 3 and [path.name for path in tmp_path.iterdir()] == ["best"]


def test_damaged_results_cost_no_state(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "tuning.json").write_text((tmp_path / "tuning.json").read_text().replace('"seed": 0', '"seed": 1'))
    again = TuningFolder(tmp_path, {"seed": 0})
    again.open()
    assert again.claim(FINGERPRINT)
    assert again.state.read_bytes() == b"state"
    assert (tmp_path / "last" / "model.safetensors").exists()
    again.close()


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
