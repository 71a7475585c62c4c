"""The benchmark of eval_batch, small: DeepSpeed, where it is installed, and a swarm compute the same."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from conftest import Launcher

DEEPSPEED = importlib.util.find_spec("deepspeed") is not None


def test_all_ways_compute_the_same(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run("-m", "benchmarks.eval_batch", "--quick", "--output", str(tmp_path), preloaded=False)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "eval_batch.json").read_text())
    outcomes = {one["name"]: one["details"][0] for one in content["series"]}
    assert set(outcomes) == {"dist_eval, 2 servers", "dist_eval, one at a time"} | (
        {"DeepSpeed, 2 stages"} if DEEPSPEED else set()
    )
    ours = outcomes["dist_eval, 2 servers"]
    assert len(ours["losses"]) == 4 and len({*ours["losses"]}) == 4
    for name, outcome in outcomes.items():
        assert outcome["loss"] == pytest.approx(sum(ours["losses"]) / 4, abs=1e-5), name
        assert outcome["losses"] == pytest.approx(ours["losses"], abs=1e-5), name
        for row, expected in zip(outcome["logits"], ours["logits"], strict=True):
            assert row == pytest.approx(expected, abs=1e-4), name
    assert (tmp_path / "eval_batch.png").stat().st_size > 0
    assert not launcher.leftovers()
