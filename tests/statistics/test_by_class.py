"""Intervals of each class, label or output: around the figures of `per_class`, by the method that suits each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import names_of
from scipy import stats

from dist_eval.metrics.catalogue import OF_OUTPUT
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from dist_eval.statistics import Interval, Sums, Units, class_intervals, metric_intervals

FIGURES_OF_CLASSES = ("precision", "recall", "f1")


def synthetic(
    examples: int, outputs: int, problem: Problem = SINGLE_LABEL, seed: int = 0, skill: float = 1.5
) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(examples, outputs)).round(1)
    label: np.ndarray = generator.integers(outputs, size=examples)
    if problem is SINGLE_LABEL:
        logits[np.arange(examples), label] += skill
    elif problem is MULTI_LABEL:
        label = generator.random(logits.shape) < 0.3
        logits += skill * (label - 0.5)
    else:
        label = logits + generator.normal(size=logits.shape)
    return Predictions.from_logits(np.arange(examples), label, logits.astype(np.float32), problem)


def intervals_of(
    predictions: Predictions, groups: np.ndarray | None = None, confidence: float = 0.95
) -> list[dict[str, Interval]]:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    whole = dict.fromkeys(
        OF_OUTPUT, Interval(confidence=confidence, low=0.1, high=0.2, method="percentile", resamples=199)
    )
    return class_intervals(predictions.in_groups(groups), metrics, whole, confidence=confidence)


@settings(max_examples=60)
@given(
    st.builds(
        synthetic,
        st.integers(1, 80),
        st.integers(1, 4),
        st.sampled_from([SINGLE_LABEL, MULTI_LABEL, REGRESSION]),
        st.integers(0, 999),
    ),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([0.8, 0.95]),
)
def test_every_figure_has_an_interval_around_it_or_a_reason(
    predictions: Predictions, size: int | None, confidence: float
) -> None:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    groups = None if size is None else np.arange(len(predictions)) // size
    predictions = predictions.in_groups(groups)
    whole = metric_intervals(predictions, metrics, confidence=confidence, resamples=99)
    found = class_intervals(predictions, metrics, whole, confidence=confidence)
    assert len(found) == len(metrics.per_class)
    for row, intervals in zip(metrics.per_class, found, strict=True):
        assert list(intervals) == [name for name, _ in row if name not in ("label", "support", "intervals")]
        for name, interval in intervals.items():
            assert interval.confidence == confidence
            if interval.low is None or interval.high is None:
                assert interval.high is None and interval.method is None and interval.reason, name
            else:
                value = getattr(row, name)
                assert value is not None and interval.low <= value <= interval.high, name


@pytest.mark.parametrize("problem", [SINGLE_LABEL, MULTI_LABEL])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_precision_and_recall_have_scipys_wilson_interval(problem: Problem, confidence: float) -> None:
    predictions = synthetic(200, 4, problem)
    for number, found in enumerate(intervals_of(predictions, confidence=confidence)):
        is_it, given = (
            one == number if problem is SINGLE_LABEL else one[:, number]
            for one in (predictions.label, predictions.prediction)
        )
        hits = int((is_it & given).sum())
        for name, trials in (("precision", given.sum()), ("recall", is_it.sum())):
            expected = stats.binomtest(hits, int(trials)).proportion_ci(confidence, method="wilson")
            assert (found[name].low, found[name].high) == pytest.approx((expected.low, expected.high), rel=1e-12)
            assert found[name].method == "wilson"


def test_f1_has_the_interval_that_resampled_examples_give() -> None:
    predictions = synthetic(300, 3)
    for number, found in enumerate(intervals_of(predictions)):
        label, given = predictions.label == number, predictions.prediction == number
        rows = np.stack([label & given, label, given]).astype(float)
        statistic = Sums(Units.single(300), rows, lambda sums: {"f1": 2 * sums[0] / (sums[1] + sums[2])})
        drawn = statistic.resampled(9_999, seed=1)["f1"]
        known = stats.bootstrap(
            (label, given),
            lambda a, b: 2 * (a & b).sum() / (a.sum() + b.sum()),
            paired=True,
            vectorized=False,
            n_resamples=0,
            bootstrap_result=type("Earlier", (), {"bootstrap_distribution": drawn})(),
            method="BCa",
        ).confidence_interval
        low, high = found["f1"].low, found["f1"].high
        assert low is not None and high is not None
        assert (low, high) == pytest.approx((known.low, known.high), abs=0.06 * (known.high - known.low))
        assert (found["f1"].method, found["f1"].resamples) == ("bca", 1_999)


def test_f1s_interval_contains_the_truth_as_often_as_it_says() -> None:
    shares, generator = np.array([0.5, 0.3, 0.2]), np.random.default_rng(0)
    recalls = np.array([[0.9, 0.06, 0.04], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7]])
    cells = shares[:, np.newaxis] * recalls
    truth = 2 * np.diag(cells) / (cells.sum(axis=0) + cells.sum(axis=1))
    inside = []
    for _ in range(200):
        cell = generator.choice(9, size=400, p=cells.ravel())
        predictions = Predictions.from_logits(np.arange(400), cell // 3, np.eye(3)[cell % 3])
        for one, value in zip(intervals_of(predictions), truth, strict=True):
            low, high = one["f1"].low, one["f1"].high
            inside.append(low is not None and high is not None and low <= value <= high)
    # of 600 intervals, somewhat dependent ones: the standard error is about a point
    assert np.mean(inside) == pytest.approx(0.95, abs=0.025)


def test_few_examples_of_a_class_have_wilsons_intervals_only() -> None:
    label = np.repeat([0, 1, 2], [60, 20, 19])
    predicted = np.where(np.arange(99) % 5 == 0, (label + 1) % 3, label)
    _, enough, few = intervals_of(Predictions.from_logits(np.arange(99), label, np.eye(3)[predicted]))
    assert enough["f1"].method == "bca"
    assert few["f1"].reason == "fewer than 20 examples: too few for the bootstrap"
    assert few["precision"].method == few["recall"].method == "wilson"


def test_what_is_undefined_says_why_and_perfection_has_wilsons_width() -> None:
    label = np.zeros(40, dtype=np.int64)
    first, missing = intervals_of(Predictions.from_logits(np.arange(40), label, np.eye(2)[label]))
    assert {name: one.reason for name, one in missing.items()} == {
        "precision": "never predicted",
        "recall": "no examples",
        "f1": "no examples, and never predicted",
    }
    assert first["recall"].high == 1.0 and first["recall"].low is not None and 0.9 < first["recall"].low < 1
    assert "same value" in (first["f1"].reason or "")


def test_groups_are_drawn_whole_for_all_three() -> None:
    alone = synthetic(150, 3)
    copies = np.repeat(np.arange(150), 4)
    alike = alone.at(copies)
    plain, grouped, once = intervals_of(alike), intervals_of(alike, copies), intervals_of(alone, np.arange(150))
    for one, other, single in zip(plain, grouped, once, strict=True):
        for name in FIGURES_OF_CLASSES:
            # four copies of an example say no more than one
            assert (other[name].low, other[name].high) == (single[name].low, single[name].high)
            assert other[name].method in ("bca", "percentile")
            ends = (one[name].low, one[name].high, other[name].low, other[name].high)
            low, high, lower, higher = (end or 0.0 for end in ends)
            assert higher - lower > 1.5 * (high - low)


def test_groups_of_one_have_the_intervals_of_examples() -> None:
    predictions = synthetic(400, 3, seed=2)
    for one, other in zip(intervals_of(predictions), intervals_of(predictions, np.arange(400)), strict=True):
        for name in FIGURES_OF_CLASSES:
            ends = [(found[name].low or 0.0, found[name].high or 0.0) for found in (one, other)]
            assert ends[1] == pytest.approx(ends[0], abs=0.15 * (ends[0][1] - ends[0][0]))


def test_few_groups_with_a_class_have_no_interval() -> None:
    label = np.zeros(400, dtype=np.int64)
    label[:95] = 1
    predicted = np.where(np.arange(400) % 7 == 0, 1 - label, label)
    predictions = Predictions.from_logits(np.arange(400), label, np.eye(2)[predicted])
    often, rare = intervals_of(predictions, np.arange(400) // 5)
    assert {one.method for one in often.values()} == {"bca"}
    why = "fewer than 20 groups: too few for the bootstrap"
    assert rare["recall"].reason == rare["f1"].reason == why  # its examples are in 19 groups
    assert rare["precision"].method == "bca"  # its predictions are in more
    for one in intervals_of(predictions, np.arange(400) % 19):
        assert {interval.reason for interval in one.values()} == {why}


def test_outputs_have_their_own_intervals_and_the_only_one_those_of_the_whole() -> None:
    label = np.random.default_rng(0).normal(size=(200, 3))
    label[:, 2] = 1.0
    logits = label * [1.0, 10.0, 1.0] + np.random.default_rng(1).normal(size=label.shape)
    predictions = Predictions.from_logits(np.arange(200), label, logits, REGRESSION)
    first, _, constant = intervals_of(predictions)
    alone = Predictions.from_logits(np.arange(200), label[:, :1], logits[:, :1], REGRESSION)
    whole = metric_intervals(alone, compute_metrics(alone, ["only"]), most=1_999)
    for name in OF_OUTPUT[:-1]:
        assert first[name].low == pytest.approx(whole[name].low, rel=1e-9), name
        assert first[name].high == pytest.approx(whole[name].high, rel=1e-9), name
    assert "only the mean over the outputs" in (first["spearman"].reason or "")
    assert constant["mae"].method == "bca"
    assert {constant[name].reason for name in ("r2", "pearson", "spearman")} == {"all labels are equal"}
    assert class_intervals(alone, compute_metrics(alone, ["only"]), whole) == [
        {name: whole[name] for name in OF_OUTPUT}
    ]


def test_intervals_are_the_same_again() -> None:
    for problem in (SINGLE_LABEL, MULTI_LABEL, REGRESSION):
        predictions = synthetic(100, 3, problem)
        assert intervals_of(predictions) == intervals_of(predictions)
