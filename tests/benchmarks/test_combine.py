"""The benchmark of the combination, small: all ways bring everything together, and nothing stays behind."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from conftest import TIMEOUT, Launcher, wait_for

from benchmarks.combine_rank import share_of
from dist_eval.metrics.predictions import Predictions, prove_coverage

WAYS = ("dist_eval", "all_gather of padded tensors", "all_gather_object of dictionaries")
CASES = ("100,000 predictions on 4 ranks", "800 predictions on 8 ranks")


def test_all_ways_are_measured_in_seconds_memory_and_bytes(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.combine", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    reports = {}
    for name in ("combine", "combine-memory", "combine-bytes"):
        reports[name] = json.loads((tmp_path / f"{name}.json").read_text())
        assert (tmp_path / f"{name}.png").stat().st_size > 0
    figures = {
        name: {(one["group"], one["name"]): one["median"] for one in content["series"]}
        for name, content in reports.items()
    }
    assert all(value > 0 for series in figures.values() for value in series.values())
    for case in CASES:
        for way in WAYS:
            assert (case, f"{way}: gather") in figures["combine"]
            assert (case, f"{way}: another rank") in figures["combine-memory"]
        steps = [f"dist_eval: {step}" for step in ("gather", "reduce", "proof", "metrics", "parquet")]
        all_steps = sum(figures["combine"][case, step] for step in steps)
        assert figures["combine"][case, "dist_eval: all"] == pytest.approx(all_steps)
        ours, *others = (figures["combine-bytes"][case, way] for way in WAYS)
        assert ours < min(others)  # bytes are counted, not timed: they are the same on any machine
    rank_0_gathers, another = (
        figures["combine-memory"][CASES[0], f"dist_eval: {who} grows by"] for who in ("rank 0", "another rank")
    )
    assert another < rank_0_gathers
    for content in reports.values():
        assert any("dictionaries / dist_eval" in one["claim"] for one in content["comparisons"])
    assert not launcher.leftovers()


@pytest.mark.parametrize(("examples", "ranks"), [(1000, 4), (7, 3), (2, 4), (1, 1)])
def test_the_synthetic_shares_contain_every_example_once(examples: int, ranks: int) -> None:
    shares = [share_of(rank, ranks, examples) for rank in range(ranks)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    index = Predictions.concatenate(shares).index
    assert prove_coverage(index, examples).exact
    assert examples < 100 or np.corrcoef(index, np.arange(examples))[0, 1] < 0.5, "in the dataset's order"


def test_interrupted_it_leaves_nothing_behind(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.start("-m", "benchmarks.combine", "--quick", "--output", str(tmp_path))
    assert wait_for(lambda: any("combine_rank" in line for line in launcher.processes().values()))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert not launcher.leftovers()
