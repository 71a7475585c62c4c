"""The cost benchmark, run as a program: every part of a swarm is found, and has worked."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher


def test_every_part_is_found_and_it_ends_clean(launcher: Launcher, tmp_path: Path) -> None:
    done = launcher.run("-m", "benchmarks.cost", "--quick", "--output", str(tmp_path), preloaded=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "cost.json").read_text())
    series = {one["name"]: one for one in found["series"]}
    parts = [name for name in series if name.startswith("swarm: ") and name != "swarm: all parts"]
    assert len(parts) == 6
    for part in ("servers, computing", "servers, handlers of requests", "servers, p2p daemons", "client"):
        assert series[f"swarm: {part}"]["values"][0] > 0
    everything = series["swarm: all parts"]
    assert abs(everything["values"][0] - sum(series[part]["values"][0] for part in parts)) < 1e-6
    details = everything["details"][0]
    assert details["round_trips"] == 2 * 9, "8 batches and the first one, through two servers each"
    assert details["bytes_sent"] > 0 and details["bytes_received"] > 0
    assert series["local, no swarm"]["values"][0] > 0
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    assert launcher.leftovers() == []
