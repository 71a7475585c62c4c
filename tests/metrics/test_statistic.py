"""Metrics of resamples, and influence values that equal the leave-one-out jackknife."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import mean_of

from dist_eval.statistics import Difference, OfRows, Statistic, Units


@pytest.mark.parametrize("power", [1, 3])
def test_of_many_examples_similar_ones_are_of_one_kind(power: int) -> None:
    values = np.random.default_rng(0).exponential(size=50_000) ** power
    units = Units.by_quantile(values, values)
    assert units.count == 50_000 and 200 <= units.kinds <= 500
    assert (np.diff(units.kind_of[np.argsort(values)]) >= 0).all(), "kinds are neighbours"
    alike, single = mean_of(values, units), mean_of(values)
    assert alike.values(units.observed_weights())["mean"][0] == pytest.approx(values.mean(), rel=1e-12)
    for exponent in (2, 3):  # the variance of resamples, and their skewness
        by_kind = (units.multiplicity * alike.influence()["mean"] ** exponent).sum()
        assert by_kind == pytest.approx((single.influence()["mean"] ** exponent).sum(), rel=1e-4)
    spreads = [statistic.resampled(1_000)["mean"].std() for statistic in (alike, single)]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.1)


def test_examples_are_drawn_one_by_one_where_similar_values_would_lose_something() -> None:
    values = np.arange(20_000.0)
    other = np.random.default_rng(0).normal(size=20_000)
    assert Units.by_quantile(values, values).kinds == 500
    assert Units.by_quantile(values, values, other).are_examples
    assert Units.by_quantile(values[:10_000], values[:10_000]).are_examples
    assert Units.by_quantile(np.zeros(20_000), np.zeros(20_000)).kinds == 1


def left_out(statistic: Statistic, kind: int) -> float:
    weights = statistic.units.observed_weights()
    weights[kind] -= 1
    return float(statistic.values(weights)["mean"][0])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3)), min_size=2, max_size=30), st.booleans())
def test_the_influence_of_a_mean_equals_the_leave_one_out_jackknife(
    pairs: list[tuple[int, int]], grouped: bool
) -> None:
    names, values = np.array([first for first, _ in pairs]), np.array([float(second) for _, second in pairs])
    units = Units.groups(names) if grouped else Units.by_value(values.astype(np.int64) + 3)
    statistic = mean_of(values, units)
    assert statistic.values(units.observed_weights())["mean"][0] == pytest.approx(values.mean(), abs=1e-12)
    if units.count < 2:
        return
    left = np.array([left_out(statistic, kind) for kind in range(units.kinds)])
    expected = (units.count - 1) * (np.average(left, weights=units.multiplicity) - left)
    assert statistic.influence()["mean"] == pytest.approx(expected, abs=1e-9)
    assert (statistic.influence()["mean"] * units.multiplicity).sum() == pytest.approx(0, abs=1e-9)


def test_groups_are_resampled_as_a_whole() -> None:
    groups = np.array([0, 0, 0, 1, 2, 2])
    values = mean_of(np.array([1.0, 1, 1, 0, 5, 5]), Units.groups(groups)).resampled(200)["mean"]
    possible = {
        (3 * a + 10 * c) / (3 * a + b + 2 * c) for a in range(4) for b in range(4) for c in [3 - a - b] if c >= 0
    }
    assert all(min(abs(value - one) for one in possible) < 1e-12 for value in values)


def test_any_function_of_positions_sees_what_the_others_see() -> None:
    values = np.random.default_rng(3).normal(size=40)
    for units in (Units.single(40), Units.groups(np.arange(40) // 3)):
        free = OfRows(units, {"mean": lambda rows: float(values[rows].mean()), "none": lambda rows: None})
        found = free.resampled(30)
        assert found["mean"] == pytest.approx(mean_of(values, units).resampled(30)["mean"], abs=1e-12)
        assert np.isnan(found["none"]).all()


def test_a_function_of_positions_rejects_kinds_of_several_examples() -> None:
    with pytest.raises(ValueError, match="single examples or groups"):
        OfRows(Units.by_value(np.zeros(5, dtype=np.int64)), {"one": lambda rows: 1.0}).resampled(1)


def test_a_difference_is_that_of_the_same_resamples() -> None:
    values = np.random.default_rng(3).normal(size=(2, 40))
    units = Units.single(40)
    first, second = (mean_of(row, units) for row in values)
    both = mean_of(values[1] - values[0], units)
    assert Difference(first, second).resampled(20)["mean"] == pytest.approx(both.resampled(20)["mean"], abs=1e-12)
    assert Difference(first, second).influence()["mean"] == pytest.approx(both.influence()["mean"], abs=1e-9)
