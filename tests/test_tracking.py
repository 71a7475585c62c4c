"""What trackers write into a run's folder is readable only for its user."""

from __future__ import annotations

import os
from pathlib import Path

from dist_eval.tracking import open_trackers


def test_what_a_tracker_writes_is_private_whatever_it_writes_when(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with open_trackers(["tensorboard"], tmp_path, {"lr": 0.1, "model": "base"}, "dist_eval") as trackers:
            trackers.log({"loss": 0.5, "accuracy": None}, step=1)
    finally:
        os.umask(before)
    written = list((tmp_path / "logs").rglob("*"))
    assert {"hparams.yml"} <= {path.name for path in written}
    assert [path for path in written if path.stat().st_mode & 0o077] == []
