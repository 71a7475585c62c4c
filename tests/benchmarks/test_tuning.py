"""The benchmark of tuning, small: it pretrains, tunes in both modes on a swarm, scores, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher


def test_both_modes_are_tuned_and_scored(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.tuning", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "tuning.json").read_text())
    series = {one["name"]: one for one in content["series"]}
    assert set(series) == {
        *("always the most frequent class", "bag of words, logistic regression"),
        *("dist_eval.tuning, ptune", "dist_eval.tuning, deep_ptune"),
        "dist_eval --label-words, nothing tuned",
    }
    for name, one in series.items():
        [details] = one["details"]
        low, high = details["interval"]
        assert 0 <= low < one["median"] < high <= 1, name
        assert details["examples"] == series["dist_eval.tuning, ptune"]["details"][0]["examples"] > 50
    for mode in ("ptune", "deep_ptune"):
        [details] = series[f"dist_eval.tuning, {mode}"]["details"]
        assert len(details["losses"]) == len(details["seconds"]) == 2
        assert details["best"]["epoch"] in (1, 2)
    assert len(content["comparisons"]) == 3
    assert sum("McNemar's test" in note for note in content["notes"]) == 2
    assert "pretraining: epoch 1 of 1" in process.stdout
    assert not launcher.leftovers()
