"""Intervals of a classifier's metrics: every name has one, for the values that `compute_metrics` gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import values_of
from scipy import stats
from sklearn import metrics as sk

from dist_eval.data.problem_types import SINGLE_LABEL
from dist_eval.metrics.catalogue import accuracy_names
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.statistics import AreasUnderCurves, OfRows, Statistic, Units, metric_intervals, wilson
from dist_eval.statistics.metrics import statistics_of


def names_of(classes: int) -> list[str]:
    return [f"class-{number}" for number in range(classes)]


def synthetic(examples: int, classes: int, seed: int = 0, skill: float = 1.5) -> Predictions:
    generator = np.random.default_rng(seed)
    label = generator.integers(classes, size=examples)
    logits = generator.normal(size=(examples, classes))
    logits[np.arange(examples), label] += skill
    return Predictions.from_logits(np.arange(examples), label, logits)


@st.composite
def any_predictions(draw: st.DrawFn, least: int = 1) -> Predictions:
    """Some examples, with few values of the logits, so that scores are equal often."""
    classes = draw(st.integers(1, 4))
    rows = draw(
        st.lists(st.tuples(st.integers(0, classes - 1), *[st.integers(-2, 2)] * classes), min_size=least, max_size=25)
    )
    table = np.array(rows, dtype=np.float32).reshape(len(rows), classes + 1)
    return Predictions.from_logits(np.arange(len(rows)), table[:, 0].astype(np.int64), table[:, 1:])


def taken(predictions: Predictions, rows: np.ndarray) -> Predictions:
    return Predictions(*(getattr(predictions, name)[rows] for name in ("index", "label", "logits", "loss")))


def require_equal(found: dict[str, float], predictions: Predictions) -> None:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    for name, value in found.items():
        expected = metrics.values.get(name)
        if expected is None:
            assert np.isnan(value) or name == "log_loss", name
        else:
            assert value == pytest.approx(expected, rel=1e-12, abs=1e-12), name
    assert {name for name, value in metrics.values.items() if value is not None} <= set(found)


@settings(max_examples=150, deadline=None)
@given(any_predictions())
def test_the_values_are_those_of_the_metrics(predictions: Predictions) -> None:
    require_equal(dict(values_of(statistics_of(predictions))), predictions)
    require_equal(dict(values_of(statistics_of(predictions, Units.groups(predictions.label)))), predictions)


@settings(max_examples=80, deadline=None)
@given(any_predictions(), st.integers(0, 1000))
def test_a_resample_has_the_metrics_of_the_examples_drawn(predictions: Predictions, seed: int) -> None:
    units = Units.single(len(predictions))
    weights = next(iter(units.draws(1, seed)))
    rows = np.repeat(np.arange(len(predictions)), weights[:, 0].astype(int))
    found = {
        name: float(value[0])
        for statistic in statistics_of(predictions, units)
        for name, value in statistic.values(weights).items()
    }
    require_equal(found, taken(predictions, rows))


@settings(max_examples=80, deadline=None)
@given(any_predictions(least=3))
def test_influence_values_equal_the_leave_one_out_jackknife(predictions: Predictions) -> None:
    n = len(predictions)
    for statistic in statistics_of(predictions, Units.single(n)):
        weights = np.ones((n, n)) - np.eye(n)
        influences = statistic.influence()
        assert set(influences) == set(statistic.names)
        for name, left in statistic.values(weights).items():
            expected = (n - 1) * (left.mean() - left)
            assert influences[name] == pytest.approx(expected, abs=1e-9, nan_ok=True), name


def test_the_influence_of_a_group_is_that_of_its_examples() -> None:
    predictions, groups = synthetic(600, 3), np.arange(600) % 150
    *_, areas = statistics_of(predictions, Units.groups(groups))
    left = []
    for group in range(150):
        weights = areas.units.whole()
        weights[group] = 0
        left.append(areas.values(weights)["roc_auc_ovr_macro"][0])
    expected = 149 * (np.mean(left) - np.array(left))
    assert areas.influence()["roc_auc_ovr_macro"] == pytest.approx(expected, abs=0.03 * np.abs(expected).max())


@settings(max_examples=30, deadline=None)
@given(any_predictions(), st.sampled_from([0.8, 0.95]))
def test_every_metric_has_an_interval_around_it_or_a_reason(predictions: Predictions, confidence: float) -> None:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    intervals = metric_intervals(predictions, metrics, confidence=confidence, resamples=99)
    assert list(intervals) == list(metrics.values)
    for name, interval in intervals.items():
        assert interval.confidence == confidence
        if interval.low is None or interval.high is None:
            assert interval.high is None and interval.method is None and len(interval.reason or "") > 10, name
            continue
        assert interval.reason is None and interval.low <= interval.high
        assert metrics.values[name] is not None
    for name in metrics.undefined:
        assert intervals[name].reason == metrics.undefined[name]


def test_proportions_have_wilsons_interval() -> None:
    predictions = synthetic(300, 4)
    metrics = compute_metrics(predictions, names_of(4))
    intervals = metric_intervals(predictions, metrics)
    right = int((predictions.label == predictions.prediction).sum())
    for name in accuracy_names(SINGLE_LABEL.name):
        assert metrics.values[name] == pytest.approx(right / 300)
        assert (intervals[name].low, intervals[name].high) == wilson(right, 300)
        assert intervals[name].method == "wilson"
    others = set(intervals) - set(accuracy_names(SINGLE_LABEL.name)) - {"ece"}
    assert {intervals[name].method for name in others} == {"bca"}
    assert {intervals[name].resamples for name in others} == {9_999}


@pytest.mark.parametrize("classes", [2, 3])
def test_intervals_are_near_scipys(classes: int) -> None:
    predictions = synthetic(250, classes)
    metrics = compute_metrics(predictions, names_of(classes))
    intervals = metric_intervals(predictions, metrics)
    label, guess, loss = predictions.label, predictions.prediction, predictions.loss
    scores = predictions.probabilities[:, 1]

    def scipys(function: object, *columns: np.ndarray) -> tuple[float, float]:
        ends = stats.bootstrap(
            columns, function, paired=True, vectorized=False, n_resamples=1000, method="BCa", rng=1
        ).confidence_interval
        return ends.low, ends.high

    if classes == 2:
        expected = {
            "mcc": scipys(sk.matthews_corrcoef, label, guess),
            "roc_auc": scipys(sk.roc_auc_score, label, scores),
        }
    else:
        expected = {
            "f1_macro": scipys(lambda a, b: sk.f1_score(a, b, average="macro"), label, guess),
            "loss": scipys(np.mean, loss),
        }
    for name, (low, high) in expected.items():
        found = intervals[name]
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.08 * (high - low)), name


def test_intervals_are_the_same_again_and_others_for_another_seed() -> None:
    predictions = synthetic(100, 3)
    metrics = compute_metrics(predictions, names_of(3))
    first = metric_intervals(predictions, metrics, resamples=200)
    assert first == metric_intervals(predictions, metrics, resamples=200)
    assert first["mcc"] != metric_intervals(predictions, metrics, resamples=200, seed=1)["mcc"]


def test_perfect_predictions_have_wilsons_interval_and_no_other() -> None:
    label = np.arange(40) % 2
    predictions = Predictions.from_logits(np.arange(40), label, np.eye(2)[label] * 9)
    intervals = metric_intervals(predictions, compute_metrics(predictions, names_of(2)))
    assert (intervals["accuracy"].low, intervals["accuracy"].high) == wilson(40, 40)
    for name in ("f1_macro", "mcc", "balanced_accuracy", "roc_auc", "loss"):
        assert intervals[name].low is None
        assert "same value" in (intervals[name].reason or "")


def test_a_class_that_is_too_rare_leaves_no_interval() -> None:
    label = np.zeros(60, dtype=np.int64)
    label[0] = 1
    logits = np.random.default_rng(0).normal(size=(60, 2))
    logits[:, 0] += 2
    logits[0] = [0, 3]
    predictions = Predictions.from_logits(np.arange(60), label, logits)
    metrics = compute_metrics(predictions, names_of(2))
    assert metrics.values["roc_auc"] is not None
    interval = metric_intervals(predictions, metrics)["roc_auc"]
    assert interval.low is None and "too rare" in (interval.reason or "")


def test_groups_widen_intervals_if_their_examples_are_correlated() -> None:
    predictions = synthetic(400, 2)
    copies = np.repeat(np.arange(100), 4)
    alike = taken(predictions, copies)
    metrics = compute_metrics(alike, names_of(2))
    plain, grouped = (metric_intervals(alike, metrics, groups=groups) for groups in (None, copies))
    alone = taken(predictions, np.arange(100))
    expected = metric_intervals(alone, compute_metrics(alone, names_of(2)), groups=np.arange(100))
    for name in metrics.values:
        low, high = grouped[name].low, grouped[name].high
        if name == "ece":
            assert low is None
            continue
        tolerance = 1e-4 if name == "roc_auc" else 1e-9  # its correction adds up the influences of examples
        assert (low, high) == pytest.approx((expected[name].low, expected[name].high), abs=tolerance), name
        assert high - low > 1.6 * (plain[name].high - plain[name].low), name
    assert grouped["accuracy"].method == "bca"


def test_extra_statistics_are_included() -> None:
    predictions = synthetic(80, 2)
    metrics = compute_metrics(predictions, names_of(2))
    errors = (predictions.probabilities[:, 1] - predictions.label) ** 2
    metrics.values.update({"squares": float(errors.mean()), "unheard_of": 1.0})
    squares: Statistic = OfRows(Units.single(80), {"squares": lambda rows: float(errors[rows].mean())})
    intervals = metric_intervals(predictions, metrics, extra_statistics=[squares])
    assert intervals["squares"].method == "percentile"
    assert "could be resampled" in (intervals["unheard_of"].reason or "")


@settings(max_examples=80, deadline=None)
@given(any_predictions(least=15), st.booleans(), st.sampled_from([0.05, 0.5, 0.95, 0.999]))
def test_no_interval_excludes_its_value(predictions: Predictions, is_grouped: bool, confidence: float) -> None:
    copies = np.tile(np.arange(len(predictions)), 3)
    several, groups = taken(predictions, copies), copies if is_grouped else None
    metrics = compute_metrics(several, names_of(predictions.num_labels))
    found = metric_intervals(several, metrics, confidence=confidence, groups=groups, resamples=40)
    for name, interval in found.items():
        if interval.low is None or interval.high is None:
            assert interval.reason, name
        else:
            assert interval.low <= (metrics.values[name] or 0.0) <= interval.high, name


def test_few_examples_or_groups_have_wilsons_interval_only() -> None:
    for examples in (19, 20):
        predictions = synthetic(examples, 2)
        metrics = compute_metrics(predictions, names_of(2))
        found = metric_intervals(predictions, metrics)
        assert found["accuracy"].method == "wilson"
        assert ((found["loss"].reason or "").startswith("fewer than 20 examples")) == (examples == 19)
    predictions = synthetic(400, 2)
    few = metric_intervals(predictions, compute_metrics(predictions, names_of(2)), groups=np.arange(400) % 19)
    assert {one.reason for name, one in few.items() if name != "ece"} == {
        "fewer than 20 groups: too few for the bootstrap"
    }


def test_the_error_of_an_area_is_delongs() -> None:
    predictions = synthetic(900, 2)
    positive, scores = predictions.label == 1, predictions.probabilities[:, 1]
    areas = AreasUnderCurves(Units.single(900), lambda: iter([(positive, scores)]), 1, ("area",))
    wins = (scores[positive][:, None] > scores[~positive]) + 0.5 * (scores[positive][:, None] == scores[~positive])
    delong = wins.mean(axis=1).var(ddof=1) / positive.sum() + wins.mean(axis=0).var(ddof=1) / (~positive).sum()
    influence = areas.influence()["area"]
    assert np.sqrt((influence**2).sum() / (900 * 899)) == pytest.approx(np.sqrt(delong), rel=0.005)
