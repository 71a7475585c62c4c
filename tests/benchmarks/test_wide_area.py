"""The benchmark of distant swarms, small: the delay reaches every contender, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher

NEAR, FAR = "Llama 64x4, 0 ms round trip", "Llama 64x4, 100 ms round trip"
SECONDS_ON_THE_WAY = 0.2
"""Two servers, one after the other, at 100 ms each."""


def test_all_contenders_run_through_the_proxy_and_agree(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.wide_area", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "wide_area.json").read_text())
    details = {(one["group"], one["name"]): one["details"][0] for one in content["series"]}
    assert set(details) == {
        (NEAR, "dist_eval, 2 ranks"),
        (FAR, "dist_eval, 2 ranks"),
        (FAR, "Trainer.predict, batch 32"),
    }
    assert all(one["equal_predictions"] == 1.0 for one in details.values())
    assert all(one["seconds"] > SECONDS_ON_THE_WAY for (group, _), one in details.items() if group == FAR)
    assert {one["claim"] for one in content["comparisons"]} == {
        "100 ms: dist_eval, 2 ranks / best of gather_for_metrics, Trainer.predict",
        "100 ms: dist_eval, 2 ranks / the same at 0 ms",
    }
    assert (tmp_path / "wide_area.png").stat().st_size > 0
    assert not launcher.leftovers()
