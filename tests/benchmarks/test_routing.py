"""The routing benchmark, run as a program: every way of choosing servers is measured, on both replicas."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher


def test_it_measures_all_ways_and_ends_clean(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run("-m", "benchmarks.routing", "--quick", "--output", str(tmp_path), preloaded=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "routing.json").read_text())
    series = {one["name"]: one for one in found["series"]}
    assert set(series) == {
        "the fast replica alone",
        "Petals' own forward",
        "servers at random, as Petals",
        "dist_eval",
        "dist_eval, window free",
    }
    assert all(one["values"][0] > 0 for one in series.values())
    servers = series["dist_eval"]["details"][0]
    assert len(servers) == 2, "both replicas were used"
    assert sum(one["requests"] for one in servers) == 16
    assert all(one["seconds_per_token_and_block"] > 0 for one in servers)
    assert (tmp_path / "routing.png").read_bytes().startswith(b"\x89PNG")
    assert launcher.leftovers() == []
