"""The benchmark of start-up, small: it measures what it should, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher


def test_it_measures_the_help_and_the_way_to_the_first_forward(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.startup", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "startup.json").read_text())
    seconds = {(one["group"], one["name"]): one["median"] for one in content["series"]}
    ours = ["dist_eval, 1 rank"]
    clients = [f"client that only connects, {where}" for where in ("plain process", "1 rank")]
    forward, cpu = "until the first forward is sent", "CPU, whole run, all ranks"
    assert {name for group, name in seconds if group == forward} == {
        *ours,
        *clients,
        "torchrun alone, until its rank begins",
    }
    assert {name for group, name in seconds if group == cpu} == {*ours, *clients}
    assert min(seconds.values()) > 0
    alone = seconds[forward, "torchrun alone, until its rank begins"]
    assert alone < seconds[forward, clients[1]]
    assert alone < seconds[forward, ours[0]]
    groups = [group for group, _ in seconds]
    assert groups == sorted(groups, key=groups.index), "the table shows a group in several places"

    claims = {one["claim"]: one for one in content["comparisons"]}
    assert claims["seconds until the help"]["bar"] == 1.0
    assert claims["seconds that dist_eval, 1 rank takes more than client that only connects, 1 rank"]["bar"] == 1.5
    assert (tmp_path / "startup.png").stat().st_size > 0
    assert not launcher.leftovers()
