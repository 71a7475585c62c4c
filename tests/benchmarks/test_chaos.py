"""The chaos test, small: one event of each kind, nothing lost, nothing left behind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Launcher


@pytest.mark.slow
def test_nothing_is_lost_whatever_happens(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.chaos", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stdout + process.stderr
    content = json.loads((tmp_path / "chaos.json").read_text())
    [tally] = content["notes"]
    assert tally.startswith("4 events (1 x agent killed, 1 x rank killed, 1 x server frozen, 1 x server killed)")
    assert re.search(r": 0 of \d+ examples lost, 0 counted twice, 0 processes left behind", tally)
    assert "equal to the undisturbed run's to the last byte" in tally
    assert {series["name"]: len(series["values"]) for series in content["series"]} == {
        "a server is killed, another one has its blocks": 1,
        "the only server comes back, from when it is ready": 1,
    }
    assert not launcher.leftovers()
