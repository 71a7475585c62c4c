"""The benchmark of common beginnings."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher

from benchmarks.prefix import PLAIN, SESSIONS, shortest_prefix


def test_sessions_pay_for_many_texts_from_a_few_tokens_on_and_never_for_one() -> None:
    assert 1 < shortest_prefix(2000) <= 16
    assert shortest_prefix(2000) <= shortest_prefix(50)
    assert shortest_prefix(1) == 64


def test_both_ways_are_measured(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.prefix", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    series = json.loads((tmp_path / "prefix.json").read_text())["series"]
    assert {one["name"] for one in series} == {SESSIONS, PLAIN}
    assert not launcher.leftovers()
