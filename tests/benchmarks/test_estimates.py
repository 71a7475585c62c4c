"""The benchmark of expected times, small: what the plan and the display say is compared with what came."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Launcher

from benchmarks.contenders import ContenderError
from benchmarks.estimates import PACES, Watched


def test_what_was_shown_after_a_tenth_is_compared_with_what_was_left() -> None:
    moments = [(3.0, 90.0), (9.0, 80.0), (15.0, 70.0), (16.0, 60.0), (104.0, 0.0), (105.0, 0.0), (106.0, 0.0)]
    shown = [(moment, moment >= 105.0, left) for moment, left in moments]
    assert Watched(110.0, shown, {"throughput": {"seconds": 100.0}}).after_a_tenth() == (70.0, 90.0)
    with pytest.raises(ContenderError):
        Watched(110.0, [], {"throughput": {"seconds": 100.0}}).after_a_tenth()


def test_a_pace_is_that_of_the_slowest_stage() -> None:
    assert [pace.slowest for pace in PACES] == [0.05, 0.5, 0.1, 0.2]


def test_it_compares_estimates_with_what_came(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.estimates", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "estimates.json").read_text())
    assert [len(one["values"]) for one in content["series"]] == [1, 1, 1]
    assert all(0.2 < one["values"][0] < 5 for one in content["series"])
    assert (tmp_path / "estimates.png").stat().st_size > 0
    assert not launcher.leftovers()
