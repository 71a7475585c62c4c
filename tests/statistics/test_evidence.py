"""Evidence: an interval and a p-value if the data support one, else a reason."""

from __future__ import annotations

import numpy as np
import pytest
from samples import mean_of, names_of
from scipy import stats

from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.statistics import (
    Difference,
    Evidence,
    OfRows,
    Statistic,
    Units,
    gather_evidence,
    metric_intervals,
    paired_differences,
    percentile,
)
from dist_eval.statistics.evidence import affordable_resamples
from dist_eval.statistics.intervals import jackknife, standard_error
from dist_eval.statistics.paired import differences_of


def only(statistic: Statistic, value: float, resamples: int | None = None) -> Evidence:
    return gather_evidence(statistic, {statistic.names[0]: value}, resamples=resamples)[statistic.names[0]]


def test_many_examples_have_nearly_the_same_interval_either_way() -> None:
    values = np.random.default_rng(1).exponential(size=10_000)
    statistic = mean_of(values)
    resampled = only(statistic, values.mean(), resamples=5_000).interval()
    error = standard_error(statistic.influence()["mean"], statistic.units.multiplicity)
    low, high = jackknife(values.mean(), error)
    assert (resampled.method, resampled.resamples) == ("bca", 5_000)
    assert (resampled.low, resampled.high) == pytest.approx((low, high), abs=0.03 * (high - low))


def test_the_number_of_resamples_falls_with_the_work_until_the_jackknife_takes_over() -> None:
    def number(examples: int) -> int | None:
        return affordable_resamples(mean_of(np.ones(examples)))

    assert number(100) == 9_999
    assert 1_999 <= (number(30_000) or 0) < 9_999
    assert number(1_000_000) is None
    evidence = only(mean_of(np.arange(200_000.0)), 99_999.5)
    interval = evidence.interval()
    assert (interval.method, interval.resamples) == ("jackknife", None)
    assert interval.low is not None and interval.high is not None
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * 57735 / 200_000**0.5, rel=1e-3)
    assert evidence.p_value() == pytest.approx(0.0)


def test_an_interval_ends_where_the_metric_does() -> None:
    errors = np.r_[np.full(300_000, 0.1), 1000.0] ** 2
    value = float(errors.mean())
    interval = only(mean_of(errors, name="0/mse"), value).interval()
    assert interval.method == "jackknife"
    assert interval.low == 0.0
    assert interval.high is not None and interval.high > 2 * value


def test_what_does_not_vary_has_no_interval() -> None:
    for examples in (20, 200_000):
        evidence = only(mean_of(np.full(examples, 0.1)), 0.1)
        interval = evidence.interval()
        assert (interval.low, interval.high, interval.method) == (None, None, None)
        assert interval.reason is not None and "same value" in interval.reason
        assert evidence.p_value() is None
        assert only(mean_of(np.zeros(examples)), 0.0).p_value() == 1.0


@pytest.mark.parametrize("scale", [1e-150, 1e-12, 1e12])
def test_what_varies_at_a_small_or_large_scale_has_the_interval_of_its_scale(scale: float) -> None:
    values = np.random.default_rng(0).exponential(size=60)
    for resamples in (500, None):
        one = only(mean_of(values), values.mean(), resamples)
        other = only(mean_of(values * scale), (values * scale).mean(), resamples)
        ends, scaled = one.interval(), other.interval()
        assert ends.low is not None and scaled.low is not None and scaled.high is not None
        assert (scaled.low / scale, scaled.high / scale) == pytest.approx((ends.low, ends.high), rel=1e-9)
        assert other.p_value() == one.p_value()


def test_a_difference_of_rounding_alone_is_none() -> None:
    generator = np.random.default_rng(0)
    values = generator.exponential(size=60)
    noisy = values * (1 + 1e-15 * generator.normal(size=60))
    evidence = only(Difference(mean_of(values), mean_of(noisy)), float(noisy.mean() - values.mean()), 500)
    assert evidence.interval().low is None and evidence.p_value() == 1.0


def test_an_interval_that_would_not_contain_its_value_is_not_shown() -> None:
    values = np.random.default_rng(0).normal(size=60)
    largest = OfRows(Units.single(60), {"extent": lambda rows: float(len(np.unique(rows)))})
    interval = only(largest, float(len(values))).interval()
    assert interval.low is None and "not contain the value itself" in (interval.reason or "")


def test_an_average_over_many_classes_of_few_examples_has_no_interval() -> None:
    generator = np.random.default_rng(0)
    label = np.repeat(np.arange(100), 20)
    guess = np.where(generator.uniform(size=2000) < 0.5, label, generator.permutation(label))
    predictions = Predictions.from_logits(np.arange(2000), label, np.eye(100)[guess])
    found = metric_intervals(predictions, compute_metrics(predictions, names_of(100)))
    assert found["accuracy"].low is not None and found["mcc"].low is not None
    assert "the resamples are biased" in (found["precision_weighted"].reason or "")


def test_a_difference_ends_where_no_larger_one_is_possible() -> None:
    label = np.arange(30) % 2
    right, wrong = np.eye(2)[label], np.eye(2)[np.where(np.arange(30) < 3, label, 1 - label)]
    first, second = (Predictions.from_logits(np.arange(30), label, logits) for logits in (wrong, right))
    found = paired_differences(first, second, metrics=["f1_weighted"])["f1_weighted"]
    assert found.interval.high == 1


def test_a_users_metric_may_have_any_range_whatever_its_name() -> None:
    rights = np.random.default_rng(0).uniform(size=(2, 60)) < [[0.4], [0.9]]
    first, second = (
        OfRows(Units.single(60), {"f1": lambda rows, right=right: float(100 * right[rows].mean())}) for right in rights
    )
    found = differences_of((first, second))["f1"]
    assert found.interval.low is not None and found.interval.high is not None and found.interval.high > 10


def test_few_units_have_no_interval() -> None:
    for examples in (1, 19):
        evidence = only(mean_of(np.arange(examples, dtype=float)), (examples - 1) / 2)
        assert evidence.interval().reason == "fewer than 20 examples: too few for the bootstrap"
        assert evidence.p_value() is None
    assert only(mean_of(np.arange(20.0)), 9.5).interval().low is not None
    grouped = only(mean_of(np.arange(500.0), Units.groups(np.arange(500) % 19)), 249.5)
    assert grouped.interval().reason == "fewer than 20 groups: too few for the bootstrap"


def test_what_most_resamples_leave_undefined_has_no_interval() -> None:
    def needs_the_first(rows: np.ndarray) -> float | None:
        return float(rows.mean()) if 0 in rows else None

    evidence = only(OfRows(Units.single(30), {"rare": needs_the_first}), 14.5)
    interval = evidence.interval()
    assert interval.low is None and interval.reason is not None and "too rare" in interval.reason
    assert evidence.p_value() is None


@pytest.mark.parametrize("is_difference", [True, False])
def test_a_level_beyond_the_outermost_resamples_has_no_interval(is_difference: bool) -> None:
    values = np.random.default_rng(0).normal(size=60)
    statistic = mean_of(values)
    if is_difference:
        statistic = Difference(statistic, mean_of(values + 0.1 * values**2))
    evidence = only(statistic, 0.0, 199)
    assert evidence.interval(0.99).low is not None
    too_high = evidence.interval(0.9951 if is_difference else 0.991)
    assert (too_high.low, too_high.reason) == (None, "too few resamples for this confidence level")


def test_without_a_correction_the_ends_are_percentiles() -> None:
    values = np.random.default_rng(0).normal(size=100)
    evidence = only(OfRows(Units.single(100), {"median": lambda rows: float(np.median(values[rows]))}), 0.0)
    interval = evidence.interval()
    assert interval.method == "percentile" and interval.resamples == 999
    assert (interval.low, interval.high) == percentile(evidence.distribution)


@pytest.mark.parametrize(("shift", "likely"), [(0.0, True), (0.4, False)])
def test_the_p_value_agrees_with_a_t_test(shift: float, likely: bool) -> None:
    values = np.random.default_rng(5).normal(size=200)
    values += shift - values.mean() + 0.05
    p_value = only(mean_of(values), values.mean()).p_value()
    assert p_value == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.02)
    assert (p_value > 0.05) == likely


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("rare", [1, 2, 3, 4])
def test_a_class_that_some_resamples_lack_gives_no_interval_without_width(rare: int, confidence: float) -> None:
    labels = np.repeat([0, 1, 2], [40, 40, rare])

    def of(predicted: np.ndarray) -> Predictions:
        return Predictions.from_logits(np.arange(len(labels)), labels, np.eye(3, dtype=np.float32)[predicted])

    constant, name = of(np.zeros(len(labels), dtype=np.int64)), "balanced_accuracy"
    alone = metric_intervals(constant, compute_metrics(constant, list("abc")), confidence=confidence)[name]
    difference = paired_differences(constant, of(labels), metrics=[name], confidence=confidence)[name]
    for interval in (alone, difference.interval):
        assert interval.reason if interval.limits is None else interval.limits[0] < interval.limits[1]
    if rare == 4:
        assert alone.limits is None and "nearly all resamples give the same value" in (alone.reason or "")
        assert difference.p_value is None
