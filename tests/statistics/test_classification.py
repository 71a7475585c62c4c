"""Intervals of a classifier's metrics: every name has one around its value, or a reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import names_of, synthetic
from scipy import stats

from dist_eval.metrics.catalogue import accuracy_names
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import SINGLE_LABEL
from dist_eval.statistics import OfRows, Statistic, Units, metric_intervals, wilson


@st.composite
def any_predictions(draw: st.DrawFn, least: int = 1) -> Predictions:
    """Some examples, with few values of the logits, so that scores are equal often."""
    classes = draw(st.integers(1, 4))
    rows = draw(
        st.lists(st.tuples(st.integers(0, classes - 1), *[st.integers(-2, 2)] * classes), min_size=least, max_size=25)
    )
    table = np.array(rows, dtype=np.float32).reshape(len(rows), classes + 1)
    return Predictions.from_logits(np.arange(len(rows)), table[:, 0].astype(np.int64), table[:, 1:])


@settings(max_examples=30)
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

    def area(label: np.ndarray, scores: np.ndarray) -> float:
        positive, negative = scores[label == 1], scores[label == 0]
        return float((positive[:, np.newaxis] > negative).mean())

    def f1_macro(label: np.ndarray, guess: np.ndarray) -> float:
        matrix = np.bincount(3 * label + guess, minlength=9).reshape(3, 3)
        return float(np.mean(2 * np.diag(matrix) / (matrix.sum(axis=0) + matrix.sum(axis=1))))

    if classes == 2:
        expected = {
            "mcc": scipys(lambda a, b: np.corrcoef(a, b)[0, 1], label, guess),
            "roc_auc": scipys(area, label, scores),
        }
    else:
        expected = {"f1_macro": scipys(f1_macro, label, guess), "loss": scipys(np.mean, loss)}
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
    alike = predictions.at(copies)
    metrics = compute_metrics(alike, names_of(2))
    plain, grouped = (metric_intervals(alike.in_groups(groups), metrics) for groups in (None, copies))
    alone = predictions.at(np.arange(100))
    expected = metric_intervals(alone.in_groups(np.arange(100)), compute_metrics(alone, names_of(2)))
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
    assert "no method to resample" in (intervals["unheard_of"].reason or "")


@settings(max_examples=80)
@given(any_predictions(least=15), st.booleans(), st.sampled_from([0.05, 0.5, 0.95, 0.999]))
def test_no_interval_excludes_its_value(predictions: Predictions, is_grouped: bool, confidence: float) -> None:
    copies = np.tile(np.arange(len(predictions)), 3)
    several, groups = predictions.at(copies), copies if is_grouped else None
    metrics = compute_metrics(several, names_of(predictions.num_labels))
    found = metric_intervals(several.in_groups(groups), metrics, confidence=confidence, resamples=40)
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
    few = metric_intervals(predictions.in_groups(np.arange(400) % 19), compute_metrics(predictions, names_of(2)))
    assert {one.reason for name, one in few.items() if name != "ece"} == {
        "fewer than 20 groups: too few for the bootstrap"
    }
