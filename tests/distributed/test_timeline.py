"""A timeline: calls in flight over time, for any number of calls, in a bounded number of bins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.distributed.timeline import Timeline

CALLS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e4), st.integers(0, 50), st.integers(0, 3)), min_size=1)


@given(CALLS, st.integers(2, 40))
def test_nothing_is_lost_however_long_it_takes(calls: list[tuple[float, float, int, int]], most: int) -> None:
    timeline = Timeline(most)
    for began, seconds, done, failed in calls:
        timeline.add(began, began + seconds, done=done, failed=failed)
    bins = timeline.bins()
    assert bins is not None
    assert len(bins.busy) == len(bins.done) == len(bins.failed) <= most
    assert sum(bins.done) == sum(done for _, _, done, _ in calls)
    assert sum(bins.failed) == sum(failed for *_, failed in calls)
    width = bins.bin_seconds
    under_way = sum(seconds for _, seconds, _, _ in calls)
    assert sum(bins.busy) * width == pytest.approx(under_way, abs=0.001 * width * len(bins.busy) + 1e-4)
    assert (bins.began / width).is_integer() and math.log2(width).is_integer(), "bins of several lie side by side"


def test_it_counts_calls_in_flight_and_when_they_ended() -> None:
    timeline = Timeline()
    whole = 10.0 - timeline_offset(10.0)
    timeline.add(whole, whole + 2)
    timeline.add(whole, whole + 1, done=0, failed=1)
    bins = timeline.bins()
    assert bins is not None
    count = round(1 / bins.bin_seconds)
    assert bins.busy == pytest.approx([2.0] * count + [1.0] * count + [0.0], abs=1e-2)
    assert bins.failed.index(1) in (count - 1, count)
    assert bins.done.index(1) in (2 * count - 1, 2 * count)


def timeline_offset(moment: float) -> float:
    """How far a moment of the monotonic clock is behind the beginning of its bin."""
    probe = Timeline()
    probe.add(moment, moment + 1e-6)
    bins = probe.bins()
    assert bins is not None
    from dist_eval.distributed import timeline

    return moment + timeline._EPOCH - bins.began


def test_without_a_call_there_is_none() -> None:
    assert Timeline().bins() is None
