"""The time of a run, from a probe: exact at a steady speed, and inside its interval where the speed varies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.planning.probe import Probed, expected_time
from dist_eval.planning.record import TimeEstimate


def answers(seconds: list[float] | np.ndarray, tokens: list[int] | np.ndarray, stopped: float = np.inf) -> Probed:
    return Probed(np.asarray(seconds, dtype=np.float64), np.asarray(tokens, dtype=np.int64), stopped)


@given(
    sizes=st.lists(st.integers(1, 1024), min_size=2, max_size=120),
    per_token=st.floats(1e-5, 10),
    passage=st.floats(0, 100),
    ranks=st.integers(1, 5),
    more=st.integers(0, 10**9),
)
def test_at_a_steady_speed_it_is_exact_whatever_the_start_took(
    sizes: list[int], per_token: float, passage: float, ranks: int, more: int
) -> None:
    moments = passage + per_token * np.cumsum(sizes)
    dealt = [answers(moments[rank::ranks], sizes[rank::ranks]) for rank in range(ranks)]
    found = expected_time(dealt, sum(sizes) + more)
    assert found.seconds == pytest.approx(passage + per_token * (sum(sizes) + more))
    assert found.tokens_per_second == pytest.approx(1 / per_token)
    assert found.first_answer == pytest.approx(moments[0])
    assert found.probe_batches == len(sizes)
    if found.low is not None and found.high is not None:
        assert found.low <= found.seconds * (1 + 1e-9) and found.seconds <= found.high
        assert found.high - found.low == pytest.approx(found.first_answer, rel=1e-3, abs=1e-3 * found.seconds)


def simulate(generator: np.random.Generator, batches: int) -> tuple[TimeEstimate, float]:
    """A probe of a run whose batches take times that vary, and those of a moment are alike; and what all take."""
    sizes = generator.integers(600, 1025, size=batches)
    noise = np.repeat(generator.gamma(4.0, 0.25, size=batches // 2 + 1), 2)[:batches]
    moments = 3.0 + np.cumsum(1e-3 * sizes * noise)
    probe = slice(0, 96)
    return expected_time([answers(moments[probe], sizes[probe])], int(sizes.sum())), float(moments[-1])


def test_the_interval_contains_what_comes_about_as_often_as_it_says() -> None:
    generator, runs = np.random.default_rng(5), 400
    found = [simulate(generator, 5000) for _ in range(runs)]
    inside = sum(bool(one.low is not None and one.high and one.low <= came <= one.high) for one, came in found)
    assert 0.90 <= inside / runs <= 0.99
    errors = [abs(one.seconds / came - 1) for one, came in found]
    assert np.median(errors) < 0.08


def test_what_comes_after_a_rank_has_stopped_does_not_count() -> None:
    steady = [
        answers(np.arange(1, 41) * 0.2, [100] * 40, stopped=8.0),
        answers(np.arange(1, 41) * 0.2, [100] * 40, 8.0),
    ]
    faster = answers([*np.arange(1, 41) * 0.2, *(8.0 + np.arange(1, 41) * 0.1)], [100] * 80, stopped=12.0)
    assert expected_time([steady[0], faster], 10**6) == expected_time(steady, 10**6)
    assert expected_time(steady, 10**6).seconds == pytest.approx(1000)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_few_answers_give_an_estimate_without_an_interval(count: int) -> None:
    found = expected_time([answers(np.arange(1, count + 1), [10] * count), answers([], [])], 100)
    assert found.seconds == pytest.approx(10)
    assert (found.low, found.high) == (None, None)


def test_answers_that_come_all_at_once_give_the_speed_until_then() -> None:
    assert expected_time([answers([2.0] * 4, [10] * 4)], 400).seconds == pytest.approx(20)


def test_the_interval_is_wider_with_more_confidence() -> None:
    moments = np.cumsum(np.tile([0.1, 0.3, 0.2, 0.5, 0.1], 10))
    widths = []
    for confidence in (0.8, 0.95, 0.99):
        found = expected_time([answers(moments, [100] * 50)], 10**5, confidence=confidence)
        assert found.low is not None and found.high is not None
        widths.append(found.high - found.low)
    assert all(one < other for one, other in itertools.pairwise(widths))
