"""Trackers: what they write is readable only for the user, and none of them delays or ends a run."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from dist_eval import tracking
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

    requires_logging_directory = False

    def __init__(self, project: str) -> None:
        self.taken = 0

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    def log(self, values: dict[str, float], step: int) -> None:
        self.taken += 1
        if self.taken > 1:
            raise ConnectionError("no answer from\nhttps://me:secret@host/api")

    def finish(self) -> None:
        pass


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
    assert said == f"dist_eval: --tracker wandb: {reason}. The run goes on without it.\n"
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
    assert "--tracker wandb has not taken all values within 0.1 s" in capsys.readouterr().err
