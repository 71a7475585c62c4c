"""The benchmark of scale, small: every step of the evaluator is measured, and nothing stays behind."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Launcher

from benchmarks.scale_rank import PHASES


def test_every_step_is_measured_in_seconds_and_every_rank_in_memory(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.scale", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    seconds, memory = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("scale", "scale-memory"))
    for rows in ("500 rows", "5,000 rows"):
        steps = {one["name"]: one["median"] for one in seconds["series"] if one["group"] == rows}
        assert list(steps) == list(PHASES)
        assert min(steps.values()) > 0
        ranks = {one["name"]: one for one in memory["series"] if one["group"] == rows}
        assert set(ranks) == {"dist_eval: rank 0", "dist_eval: rank 1"}
        for one in ranks.values():
            [peaks] = one["details"]
            assert max(peaks.values()) <= one["median"]
        leader, other = (set(ranks[f"dist_eval: rank {number}"]["details"][0]) for number in (0, 1))
        assert leader == set(PHASES)
        assert other == set(PHASES) - {"tokenizing", "proof", "metrics", "intervals", "parquet"}
    claims = {one["claim"]: one for one in memory["comparisons"]}
    flat = claims["dist_eval: rank 1, 5,000 rows / 500 rows"]
    assert flat["bar"] == 1.1
    assert flat["met"], flat  # memory is no matter of how busy the machine is
    assert "dist_eval: rank 0, bytes for each further row" in claims
    assert any("forwards are stubs" in note for note in seconds["notes"])
    for name in ("scale", "scale-memory"):
        assert (tmp_path / f"{name}.png").stat().st_size > 0
    assert not launcher.leftovers()
