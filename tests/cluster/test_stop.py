"""`python -m dist_eval.cluster.stop`: asks only the run that its options name to stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dist_eval.cluster.stop import main
from dist_eval.distributed.stop import STOP_FILE


def options(folder: Path) -> list[str]:
    return ["--demo", "--output", str(folder)]


def test_a_run_in_progress_is_asked_to_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"status": "running"}))
    assert main(options(tmp_path)) == 0
    assert (tmp_path / STOP_FILE).exists()
    assert f"the run in {tmp_path} has been asked to stop" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"status": "complete"}', '{"status": "failed"}'])
def test_without_a_run_in_progress_no_file_is_left(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    assert main(options(tmp_path)) == 1
    assert not (tmp_path / STOP_FILE).exists()
    assert f"no run is active in {tmp_path}" in capsys.readouterr().err
