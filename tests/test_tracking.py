"""Trackers: what they write is readable only for the user, and none of them delays or ends a run."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from dist_eval import tracking
from dist_eval.errors import RunStopped
from dist_eval.tracking import trackers_in_background


def test_what_a_tracker_writes_is_private_whatever_it_writes_when(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with trackers_in_background(["tensorboard"], tmp_path, {"lr": 0.1, "model": "base"}, "dist_eval") as trackers:
            trackers.log({"loss": 0.5, "accuracy": None}, step=1)
    finally:
        os.umask(before)
    written = list((tmp_path / "logs").rglob("*"))
    assert {"hparams.yml"} <= {path.name for path in written}
    assert [path for path in written if path.stat().st_mode & 0o077] == []


class _Broken:
    """A tracker of accelerate whose service is gone after the first values."""

    def __init__(self, project: str, **_: Any) -> None:
        self.taken = 0

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    def log(self, values: dict[str, float], step: int) -> None:
        self.taken += 1
        if self.taken > 1:
            raise ConnectionError("no answer from\nhttps://me:secret@host/api")

    def finish(self) -> None:
        pass


class _Recording(_Broken):
    """A tracker of accelerate that keeps what it is told, as `tracker` like that of Weights & Biases."""

    made: list[_Recording]

    def __init__(self, project: str, **arguments: Any) -> None:
        self.arguments, self.logged, self.finished = arguments, list[dict[str, float]](), list[dict[str, int]]()
        self.options: dict[str, Any] = {}
        _Recording.made.append(self)

    @property
    def tracker(self) -> _Recording:
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.options = values

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append(values)

    def finish(self, **how: int) -> None:
        self.finished.append(how)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> list[_Recording]:
    """The trackers that were opened, in the place of Weights & Biases and MLflow."""
    _Recording.made = []
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, name, _Recording)
        monkeypatch.delenv(f"{name.upper()}_RUN_NAME", raising=False)
    return _Recording.made


def test_mlflow_is_told_what_it_takes(tmp_path: Path, recording: list[_Recording]) -> None:
    many = {f"metric {number}": 1.0 for number in range(1500)}
    with trackers_in_background(["mlflow"], tmp_path / "first", {"prompt": "x" * 9000}, "dist_eval") as trackers:
        trackers.log({"chrf++": 0.5, "täsk (1)//acc": 0.5, "./../words/acc": 0.5, "n" * 300: 0.5}, step=1)
        trackers.log(many, step=2)
    [mlflow] = recording
    assert mlflow.arguments == {"run_name": "first"}
    assert len(mlflow.options["prompt"]) == 6000
    first, *others = mlflow.logged
    assert [*first] == ["chrf__", "täsk _1_/acc", "words/acc", "n" * 250]
    assert {name: value for values in others for name, value in values.items()} == many
    assert max(map(len, others)) == 1000


def test_trackers_that_tell_know_which_runs_did_not_reach_their_end(
    tmp_path: Path, recording: list[_Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(end_run=ended.append))
    monkeypatch.setenv("WANDB_NAME", "of the user")
    with pytest.raises(RunStopped), trackers_in_background(["wandb", "mlflow"], tmp_path, {}, "dist_eval"):
        raise RunStopped("Stopped.", None)
    with trackers_in_background(["wandb", "mlflow"], tmp_path, {}, "dist_eval"):
        pass
    assert ended == ["FAILED"]
    by_wandb = [each for each in recording if "run_name" not in each.arguments]
    assert [each.finished for each in by_wandb] == [[{"exit_code": 1}, {}], [{}]]
    assert all("name" not in each.arguments for each in by_wandb), "the environment has it"


def _logging(tmp_path: Path, *names: str) -> None:
    with trackers_in_background(names, tmp_path, {}, "dist_eval") as trackers:
        for step in range(5):
            trackers.log({"progress": step / 4}, step)


def test_one_that_fails_says_so_once_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "wandb", _Broken)
    _logging(tmp_path, "wandb", "tensorboard")
    said = capsys.readouterr().err
    reason = "no answer from https://host/api"
    assert said == f"dist_eval: --tracker wandb: {reason}. The run continues without it.\n"
    assert list((tmp_path / "logs").rglob("events.*"))


def test_one_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    released = threading.Event()
    monkeypatch.setattr(_Broken, "log", lambda *_, **__: released.wait(60))
    monkeypatch.setattr(tracking, "_LAST_SECONDS", 0.1)
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "wandb", _Broken)
    _logging(tmp_path, "wandb")
    released.set()
    assert "--tracker wandb did not log all values within 0.1 s" in capsys.readouterr().err
