"""The benchmark of large vocabularies, small: both ways give the same log-likelihoods."""

from __future__ import annotations

import json
import re
from pathlib import Path

from conftest import Launcher


def test_both_ways_are_measured_and_agree(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.vocabulary", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    memory = json.loads((tmp_path / "vocabulary-memory.json").read_text())
    assert len(memory["series"]) == 4
    [apart] = re.findall(r"difference of a log-likelihood was (.*)\.$", memory["notes"][-1])
    assert float(apart) < 1e-4
    assert len(json.loads((tmp_path / "vocabulary.json").read_text())["series"]) == 2
    assert not launcher.leftovers()
