"""The benchmark of throughput, small: all contenders run, agree, and leave nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher


def test_all_contenders_run_on_one_swarm_and_agree(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.throughput", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "throughput.json").read_text())
    series = {one["name"]: one for one in content["series"]}
    assert set(series) == {
        "local, no swarm",
        "loop, padded to 64",
        "gather_for_metrics, 2 ranks, batch 32",
        "dist_eval, 1 rank",
        "dist_eval, 2 ranks",
    }
    for name, one in series.items():
        [details] = one["details"]
        assert one["median"] > 0 and details["examples"] > 0, name
        assert details["equal_predictions"] == 1.0, f"{name} predicts otherwise"
        assert 0.1 < details["share_of_positives"] < 0.9, f"{name} predicts one class only"
    assert len(content["comparisons"]) == 3
    assert any("real" in note for note in content["notes"])
    assert (tmp_path / "throughput.png").stat().st_size > 0
    assert not launcher.leftovers()
