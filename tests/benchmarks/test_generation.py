"""The benchmark of generated texts: all contenders generate the same ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Launcher

from benchmarks.generation import LOCAL


def test_all_contenders_generate_the_same_texts(launcher: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="the extra `harness` is not installed")
    process = launcher.run("-m", "benchmarks.generation", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "generation.json").read_text())
    assert {one["name"] for one in content["series"]} == {"dist_eval, 1 rank", "Petals' generate, 6 threads", LOCAL}
    assert not content["notes"], "one differs from the local model"
    assert not launcher.leftovers()
