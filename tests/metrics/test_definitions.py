"""Metrics as functions of weights: those of a resample are the metrics of the examples drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import synthetic
from sklearn import metrics as sk

from dist_eval.metrics.catalogue import METRICS, SHARE, Metric
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.definitions import statistics_of
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.ranking import AveragePrecisions
from dist_eval.metrics.statistic import OfRows
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL, Problem
from dist_eval.statistics import AreasUnderCurves, Units, metric_intervals


@st.composite
def any_predictions(draw: st.DrawFn, least: int = 1) -> Predictions:
    """Some examples, with few values of the logits, so that scores are equal often."""
    problem, outputs = draw(st.sampled_from([*PROBLEMS.values()])), draw(st.integers(1, 4))
    values = st.lists(st.integers(-2, 2), min_size=outputs, max_size=outputs)
    logits = np.array(draw(st.lists(values, min_size=least, max_size=25)), dtype=np.float32)
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    label: np.ndarray = generator.integers(outputs, size=len(logits))
    if problem is MULTI_LABEL:
        label = generator.random(logits.shape) < 0.5
    elif problem is REGRESSION:
        label = logits + generator.normal(size=logits.shape).round(1)
    return Predictions.from_logits(np.arange(len(logits)), label, logits, problem)


@settings(max_examples=150)
@given(any_predictions(), st.integers(0, 1000), st.sampled_from([None, 1, 3]))
def test_a_resample_has_the_metrics_of_the_examples_drawn(
    predictions: Predictions, seed: int, size: int | None
) -> None:
    n = len(predictions)
    units = Units.single(n) if size is None else Units.groups(np.arange(n) // size)
    weights = next(iter(units.draws(1, seed)))
    drawn = predictions.at(np.repeat(np.arange(n), weights[units.kind_of, 0].astype(int)))
    metrics = compute_metrics(drawn, [str(number) for number in range(predictions.num_labels)])
    values = {
        name: float(value[0])
        for statistic in statistics_of(predictions, units)
        for name, value in statistic.values(weights).items()
    }
    for name, value in metrics.values.items():
        if value is not None:
            assert values[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name
        elif name in values and name != "log_loss":  # of a single class it is 0, which says nothing
            assert np.isnan(values[name]), name


@settings(max_examples=80)
@given(any_predictions(least=3))
def test_influence_values_equal_the_leave_one_out_jackknife(predictions: Predictions) -> None:
    n = len(predictions)
    for statistic in statistics_of(predictions, Units.single(n)):
        influences = statistic.influence() if statistic.no_interval is None else {}
        left_out = statistic.values(np.ones((n, n)) - np.eye(n)) if influences else {}
        may_lack = statistic.no_interval is not None or isinstance(statistic, OfRows | AveragePrecisions)
        assert set(influences) == set(statistic.names) or (may_lack and not influences), statistic
        for name, left in left_out.items():
            expected = (n - 1) * (left.mean() - left)
            assert influences[name] == pytest.approx(expected, abs=1e-8, nan_ok=True), name


def test_the_influence_of_a_group_is_that_of_its_examples() -> None:
    predictions, groups = synthetic(600, 3), np.arange(600) % 150
    *_, areas = statistics_of(predictions, Units.groups(groups))
    left = []
    for group in range(150):
        weights = areas.units.observed_weights()
        weights[group] = 0
        left.append(areas.values(weights)["roc_auc_ovr_macro"][0])
    expected = 149 * (np.mean(left) - np.array(left))
    assert areas.influence()["roc_auc_ovr_macro"] == pytest.approx(expected, abs=0.03 * np.abs(expected).max())


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3)), max_size=40))
def test_the_area_under_a_curve_is_scikit_learns_with_ties_and_weights(rows: list[tuple[bool, int, int]]) -> None:
    label, score, weight = np.array([*rows, (True, 2, 1), (False, 3, 1)]).T
    areas = AreasUnderCurves(Units.single(len(label)), lambda: iter([(label == 1, score / 5)]), 1, ("area",))
    assert areas.observed()["area"] == pytest.approx(sk.roc_auc_score(label, score), rel=1e-12)
    expected = sk.roc_auc_score(label, score, sample_weight=weight)
    assert areas.values(weight[:, np.newaxis].astype(float))["area"][0] == pytest.approx(expected, rel=1e-12)


def test_the_error_of_an_area_is_delongs() -> None:
    predictions = synthetic(900, 2)
    positive, scores = predictions.label == 1, predictions.probabilities[:, 1]
    areas = AreasUnderCurves(Units.single(900), lambda: iter([(positive, scores)]), 1, ("area",))
    wins = (scores[positive][:, None] > scores[~positive]) + 0.5 * (scores[positive][:, None] == scores[~positive])
    delong = wins.mean(axis=1).var(ddof=1) / positive.sum() + wins.mean(axis=0).var(ddof=1) / (~positive).sum()
    influence = areas.influence()["area"]
    assert np.sqrt((influence**2).sum() / (900 * 899)) == pytest.approx(np.sqrt(delong), rel=0.005)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_every_metric_of_the_catalogue_is_defined(problem: Problem) -> None:
    outputs = (2, 3) if problem is SINGLE_LABEL else (3,)
    names = [
        name
        for number in outputs
        for statistic in statistics_of(synthetic_predictions(problem, number))
        for name in statistic.names
    ]
    assert {*names} == {metric.name for metric in METRICS[problem.name]}


def test_of_many_examples_those_with_similar_losses_are_of_one_kind() -> None:
    predictions = synthetic(30_000, 3)
    _, losses, _, brier, _ = statistics_of(predictions)
    assert losses.units.kinds <= 500 and brier.units.kinds <= 500
    for statistic in (losses, brier):
        by_kind = statistic.values(statistic.units.observed_weights())
        assert {name: value[0] for name, value in by_kind.items()} == pytest.approx(statistic.observed(), rel=1e-12)
    assert all(statistic.units.are_examples for statistic in list(statistics_of(predictions.at(slice(2_000))))[1:])


def test_a_metric_in_the_catalogue_has_a_value_and_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    name, predictions = SINGLE_LABEL.name, synthetic(300, 3)
    error_rate = Metric("error_rate", SHARE, lambda counts: 1 - counts.right / counts.examples, lower_is_better=True)
    monkeypatch.setitem(METRICS, name, (*METRICS[name], error_rate))
    metrics = compute_metrics(predictions, ["a", "b", "c"])
    interval, wilsons = (metric_intervals(predictions, metrics)[each] for each in ("error_rate", "accuracy"))
    assert metrics.values["error_rate"] == pytest.approx(1 - metrics.values["accuracy"])
    assert (interval.low, interval.high) == pytest.approx((1 - wilsons.high, 1 - wilsons.low), abs=0.01)
