"""The benchmark of throughput, small: all contenders run, agree, and leave nothing behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from conftest import Launcher, wait_for


def test_all_contenders_run_on_one_swarm_and_agree(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.throughput", "--quick", "--output", str(tmp_path))
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "throughput.json").read_text())
    series = {one["name"]: one for one in content["series"]}
    assert set(series) == {
        "local, no swarm",
        "loop, padded to 64",
        "loop, padded to 64, 2 ranks",
        "loop, padded to 128",
        "gather_for_metrics, 2 ranks, batch 32",
        "Trainer.predict, batch 32",
        "dist_eval, 1 rank",
        "dist_eval, 2 ranks",
    }
    for name, one in series.items():
        [details] = one["details"]
        assert one["median"] > 0 and details["examples"] > 0, name
        assert details["equal_predictions"] == 1.0, f"{name} predicts otherwise"
        assert 0.1 < details["share_of_positives"] < 0.9, f"{name} predicts one class only"
    assert len(content["comparisons"]) == 5
    assert any("real" in note for note in content["notes"])
    assert (tmp_path / "throughput.png").stat().st_size > 0
    assert not launcher.leftovers()


def test_interrupted_it_leaves_nothing_behind(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.start("-m", "benchmarks.throughput", "--quick", "--output", str(tmp_path))
    assert wait_for(lambda: any("benchmarks.alternatives" in line for line in launcher.processes().values()), 120.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert not launcher.leftovers()
