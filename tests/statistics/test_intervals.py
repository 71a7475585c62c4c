"""Intervals: the same limits as SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import mean_of
from scipy import stats

from dist_eval.statistics import Units, bca, percentile, wilson
from dist_eval.statistics.intervals import jackknife, standard_error
from dist_eval.statistics.sampling import effective_size, finite_population_correction

levels = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.999])


@settings(max_examples=200)
@given(st.integers(1, 10_000), st.floats(0, 1), levels)
def test_wilsons_interval_equals_scipys(trials: int, share: float, confidence: float) -> None:
    successes = round(share * trials)
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((expected.low, expected.high), rel=1e-12, abs=1e-12)


def test_wilsons_interval_of_perfect_predictions_has_positive_width() -> None:
    low, high = wilson(20, 20)
    assert high == 1.0
    assert low == pytest.approx(1 / (1 + 1.959963984540054**2 / 20))


@settings(max_examples=200)
@given(st.integers(2, 10_000), st.floats(0, 1), st.floats(0.01, 0.99), levels)
def test_the_limits_for_a_finite_population_are_where_the_score_test_rejects(
    population: int, sampled: float, share: float, confidence: float
) -> None:
    n = min(max(1, round(sampled * population)), population - 1)
    successes, z = round(share * n), stats.norm.ppf(0.5 + confidence / 2)
    for limit in wilson(successes, n, confidence, n / population):
        variance = limit * (1 - limit) / n * (population - n) / (population - 1)
        assert abs(successes / n - limit) == pytest.approx(z * np.sqrt(variance), rel=1e-6, abs=1e-9)


def test_a_sample_of_all_rows_leaves_nothing_uncertain() -> None:
    assert wilson(3, 10, sampling_fraction=1.0) == (0.3, 0.3)
    assert finite_population_correction((0.1, 0.6), 0.3, 1.0) == (0.3, 0.3)
    assert effective_size(500, 0.0) == 500


@pytest.mark.parametrize("fraction", [0.2, 0.8])
def test_the_bootstraps_spread_is_that_of_samples_without_replacement(fraction: float) -> None:
    population = np.random.default_rng(0).exponential(size=500)
    n = round(fraction * len(population))
    drawn = [np.random.default_rng(seed).choice(population, n, replace=False) for seed in range(400)]
    low, high = np.quantile([sample.mean() for sample in drawn], [0.025, 0.975])
    limits = [
        finite_population_correction(percentile(mean_of(one).resampled(499)["mean"]), one.mean(), fraction)
        for one in drawn[:60]
    ]
    assert np.mean([upper - lower for lower, upper in limits]) == pytest.approx(high - low, rel=0.15)
    assert np.mean([lower < population.mean() < upper for lower, upper in limits]) > 0.85


@settings(max_examples=20)
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
    alike = mean_of(values, Units.by_value(values.astype(np.int64)))
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
