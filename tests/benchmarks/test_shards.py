"""The benchmark of shards, small: one file and many files are the same dataset, also after SIGKILL."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher


def test_shards_are_measured_beside_one_file_and_a_killed_run_resumes(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.shards", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    seconds, memory = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("shards", "shards-memory"))
    names = [one["name"] for one in seconds["series"] if one["group"] == "5,000 rows"]
    assert names == [
        *("one file: whole run", "one file: tokenizing", "shards: whole run", "shards: tokenizing"),
        *("shards: until kill -9", "shards: resumed run"),
    ]
    claims = {one["claim"]: one for one in memory["comparisons"]}
    flat = claims["shards: while tokenizing, 5,000 rows / 500 rows"]
    assert flat["met"], flat  # memory is no matter of how busy the machine is
    assert any("named that shard" in note for note in seconds["notes"])
    assert not launcher.leftovers()
