"""The benchmark of pipelines: its limit is arithmetic, and its servers take the time that they are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Launcher

from benchmarks.pipeline import BASE, SHAPES, Shape


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_covers_all_blocks_and_every_server_has_a_speed(shape: Shape) -> None:
    spans = sorted(set(shape.spans))
    assert [block for start, end in spans for block in range(start, end)] == list(range(BASE.layers))
    assert len(shape.speeds()) == len(shape.spans)
    assert [speed.seconds(1024) for speed in shape.speeds()] == pytest.approx([s for one in shape.stages for s in one])


def test_the_limit_is_a_passage_and_the_slowest_stage_for_each_further_batch() -> None:
    assert Shape("", ((0.1,), (0.3,), (0.1,))).least_seconds(1, 0.2) == pytest.approx(0.5 + 3 * 0.2)
    assert Shape("", ((0.1,), (0.3,), (0.1,))).least_seconds(11, 0.0) == pytest.approx(0.5 + 10 * 0.3)
    assert Shape("", ((0.1,), (0.15, 0.3))).least_seconds(11, 0.0) == pytest.approx(0.25 + 10 * 0.1)


@pytest.mark.slow
def test_it_measures_with_another_client_beside(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run(
        "-m", "benchmarks.pipeline", "--quick", "--beside", "--output", str(tmp_path), preloaded=False
    )
    assert process.returncode == 0, process.stderr
    (series,) = json.loads((tmp_path / "pipeline.json").read_text())["series"]
    assert 0.5 < series["values"][0] < 1.05, "a batch at the begin or the end may count for another one"
    assert series["details"][0]["limit"] > SHAPES[0].least_seconds(25, 0.0), "the other client's batches count, too"
    assert not launcher.leftovers()


def test_it_measures_the_share_of_the_limit(launcher: Launcher, tmp_path: Path) -> None:
    process = launcher.run("-m", "benchmarks.pipeline", "--quick", "--output", str(tmp_path), preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "pipeline.json").read_text())
    shares = {one["name"]: one["values"][0] for one in content["series"]}
    assert set(shares) == {"dist_eval, 1 rank", "Petals' client, all texts in one batch"}
    assert all(0.1 < share < 1.01 for share in shares.values()), "nothing is faster than the servers"
    assert not content["notes"], "the plan has as many batches as the limit counts"
    assert (tmp_path / "pipeline.png").stat().st_size > 0
    assert not launcher.leftovers()
