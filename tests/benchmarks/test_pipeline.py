"""The benchmark of pipelines: its limit is arithmetic."""

from __future__ import annotations

import pytest

from benchmarks.pipeline import BASE, SHAPES, Shape


@pytest.mark.parametrize("shape", SHAPES.values(), ids=lambda shape: shape.name)
def test_a_shape_covers_all_blocks_and_every_server_has_a_speed(shape: Shape) -> None:
    spans = sorted(set(shape.spans))
    assert [block for start, end in spans for block in range(start, end)] == list(range(BASE.layers))
    assert len(shape.speeds()) == len(shape.spans)
    assert [speed.seconds(1024) for speed in shape.speeds()] == pytest.approx(
        [seconds for replicas in shape.stages for seconds in replicas]
    )


def test_the_limit_is_a_passage_and_the_slowest_stage_for_each_further_batch() -> None:
    assert Shape("", ((0.1,), (0.3,), (0.1,))).least_seconds(1, 0.2) == pytest.approx(0.5 + 3 * 0.2)
    assert Shape("", ((0.1,), (0.3,), (0.1,))).least_seconds(11, 0.0) == pytest.approx(0.5 + 10 * 0.3)
    assert Shape("", ((0.1,), (0.15, 0.3))).least_seconds(11, 0.0) == pytest.approx(0.25 + 10 * 0.1)
