"""The benchmark of many classes, small."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher


def test_runs_of_few_and_many_classes_are_measured(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.classes", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    few, many = json.loads((tmp_path / "classes-results.json").read_text())["series"]
    assert few["median"] < many["median"] < 0.5
    assert not launcher.leftovers()
