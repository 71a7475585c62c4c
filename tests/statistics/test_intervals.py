"""Intervals: the same limits as SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import mean_of
from scipy import stats

from dist_eval.statistics import (
    Units,
    bca,
    percentile,
    wilson,
)
from dist_eval.statistics.intervals import jackknife, standard_error

levels = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.999])


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 10_000), st.floats(0, 1), levels)
def test_wilsons_interval_equals_scipys(trials: int, share: float, confidence: float) -> None:
    successes = round(share * trials)
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((expected.low, expected.high), rel=1e-12, abs=1e-12)


def test_wilsons_interval_of_perfect_predictions_has_positive_width() -> None:
    low, high = wilson(20, 20)
    assert high == 1.0
    assert low == pytest.approx(1 / (1 + 1.959963984540054**2 / 20))


@settings(max_examples=20, deadline=None)
@given(st.integers(5, 60), st.integers(0, 1000), levels)
def test_the_bootstraps_ends_equal_scipys_for_the_same_resamples(n: int, seed: int, confidence: float) -> None:
    values = np.random.default_rng(seed).exponential(size=n)
    statistic = mean_of(values)
    drawn = statistic.resampled(999, seed)["mean"]
    for method in ("percentile", "BCa"):
        known = stats.bootstrap(
            (values,),
            np.mean,
            n_resamples=0,
            bootstrap_result=type("Earlier", (), {"bootstrap_distribution": drawn})(),
            confidence_level=confidence,
            method=method,
        ).confidence_interval
        ours = (
            percentile(drawn, confidence)
            if method == "percentile"
            else bca(drawn, values.mean(), statistic.influence()["mean"], confidence=confidence)
        )
        assert ours == pytest.approx((known.low, known.high), rel=1e-9)


def test_kinds_weigh_in_the_correction_as_their_units() -> None:
    values = np.repeat([0.0, 1.0, 5.0], [40, 9, 3])
    alike = mean_of(values, Units.alike(values.astype(np.int64)))
    drawn = mean_of(values).resampled(999)["mean"]
    by_kind = bca(drawn, values.mean(), alike.influence()["mean"], alike.units.multiplicity)
    assert by_kind == pytest.approx(bca(drawn, values.mean(), mean_of(values).influence()["mean"]), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_the_correction_does_not_depend_on_the_scale(scale: float) -> None:
    values = np.random.default_rng(0).exponential(size=50)
    drawn, influence = mean_of(values).resampled(500)["mean"], mean_of(values).influence()["mean"]
    expected = bca(drawn, values.mean(), influence)
    scaled = bca(drawn * scale, values.mean() * scale, influence * scale)
    assert np.array(scaled) / scale == pytest.approx(expected, rel=1e-9)


def test_the_jackknifes_error_of_a_mean_is_the_textbooks() -> None:
    values = np.random.default_rng(0).normal(size=30)
    statistic = mean_of(values)
    error = standard_error(statistic.influence()["mean"], statistic.units.multiplicity)
    assert error == pytest.approx(stats.sem(values), rel=1e-9)
    low, high = stats.norm.interval(0.9, values.mean(), error)
    assert jackknife(values.mean(), error, confidence=0.9) == pytest.approx((low, high))
    assert jackknife(0.9, 0.2, bounds=(0, 1)) == (pytest.approx(0.9 - 1.959963984540054 * 0.2), 1.0)
