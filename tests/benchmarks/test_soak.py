"""The long run: what grows is found."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.soak import KINDS, Sample, growth

_RANK = ("rank 0", KINDS[0])


def _hour(per_hour: float) -> list[Sample]:
    noise = np.random.default_rng(0).normal(0, 5, 240)
    return [
        Sample(15.0 * number, 1000 * number, {_RANK: 500 + per_hour * number / 240 + noise[number]})
        for number in range(240)
    ]


@pytest.mark.parametrize("per_hour", [0.0, 50.0, -50.0])
def test_growth_is_a_slope_by_the_hour_as_a_share_of_the_mean(per_hour: float) -> None:
    slope, low, high = growth(_hour(per_hour), _RANK)
    expected = per_hour / (500 + per_hour / 2)
    assert low <= expected <= high
    assert slope == pytest.approx(expected, abs=0.01)
    assert high - low < 0.02


def test_a_few_samples_that_lack_a_role_do_not_count() -> None:
    samples = _hour(50.0)
    samples[100] = Sample(samples[100].seconds, samples[100].journal, {})
    assert growth(samples, _RANK)[0] == pytest.approx(0.095, abs=0.01)
