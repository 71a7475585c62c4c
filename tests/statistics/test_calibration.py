"""Calibration with intervals: the section of `results.json`, and what resamples say of its figures."""

from __future__ import annotations

import numpy as np
import pytest

from dist_eval.metrics.calibration import Confidences
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.definitions import statistics_of
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL
from dist_eval.statistics import (
    Interval,
    Units,
    compute_calibration,
    gather_evidence,
    metric_intervals,
    paired_differences,
    wilson,
)


def overconfident(examples: int, classes: int = 3, seed: int = 0) -> Predictions:
    """Labels are drawn from the softmax of half the logits."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=2, size=(examples, classes))
    shares = np.exp(logits / 2) / np.exp(logits / 2).sum(axis=1, keepdims=True)
    label = (shares.cumsum(axis=1) < generator.random((examples, 1))).sum(axis=1).clip(max=classes - 1)
    return Predictions.from_logits(np.arange(examples), label, logits)


def labelled(examples: int, seed: int = 0) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(examples, 2))
    label = generator.random(logits.shape) < 1 / (1 + np.exp(-2 * logits))
    return Predictions.from_logits(np.arange(examples), label, logits, MULTI_LABEL)


@pytest.mark.parametrize("predictions", [overconfident(500), labelled(500)], ids=["classes", "labels"])
def test_the_bins_give_the_figures_and_have_wilsons_intervals(predictions: Predictions) -> None:
    values = compute_metrics(predictions, ["a", "b", "c"][: predictions.num_labels]).values
    found = compute_calibration(predictions, ["a", "b", "c"][: predictions.num_labels], confidence=0.9)
    assert (found.ece, found.brier) == pytest.approx((values["ece"], values["brier"]), rel=1e-12)
    errors = []
    for bins in [found.bins] if found.per_label is None else [row.bins for row in found.per_label]:
        assert bins and sum(one.n for one in bins) == 500
        errors.append(sum(one.n * abs((one.accuracy or 0) - (one.mean_confidence or 0)) for one in bins) / 500)
        for one in bins:
            if one.accuracy is not None and one.mean_confidence is not None:
                low, high = wilson(round(one.accuracy * one.n), one.n, 0.9)
                assert (one.interval.low, one.interval.high) == (low, high)
                assert one.low - 1e-12 <= one.mean_confidence <= one.high + 1e-12
            else:
                assert (one.n, one.interval.reason) == (0, "no examples")
    assert values["ece"] == pytest.approx(np.mean(errors))
    assert (found.bins is None) == (found.per_label is not None)


def test_intervals_by_kinds_are_as_wide_as_those_by_examples() -> None:
    predictions = overconfident(20_000)
    for one, other in zip(statistics_of(predictions), statistics_of(predictions, Units.single(20_000)), strict=True):
        if one.names != ("brier",):
            continue
        assert one.units.kinds <= 500
        value = one.observed()
        widths = [width(gather_evidence(each, value, resamples=1_999)["brier"].interval()) for each in (one, other)]
        assert widths[0] == pytest.approx(widths[1], rel=0.08)


def width(interval: Interval) -> float:
    assert interval.low is not None and interval.high is not None
    return interval.high - interval.low


def test_groups_widen_the_bins_intervals_too() -> None:
    alone = overconfident(200)
    copies = np.repeat(np.arange(200), 5)
    alike = alone.at(copies)
    plain, grouped = (compute_calibration(alike.in_groups(groups), ["a", "b", "c"]).bins for groups in (None, copies))
    assert plain and grouped
    wider = 0
    for one, other in zip(plain, grouped, strict=True):
        assert (one.n, one.accuracy, one.mean_confidence) == (other.n, other.accuracy, other.mean_confidence)
        assert other.interval.method in ("bca", "percentile") or other.interval.reason
        if other.interval.low is not None and one.n >= 50:
            assert width(other.interval) > 1.5 * width(one.interval)
            wider += 1
    assert wider >= 3


@pytest.mark.parametrize("predictions", [overconfident(500), labelled(500)], ids=["classes", "labels"])
def test_the_calibration_error_has_a_reason_instead_of_ends(predictions: Predictions) -> None:
    names = ["a", "b", "c"][: predictions.num_labels]
    for groups in (None, np.arange(500) // 5):
        interval = metric_intervals(predictions.in_groups(groups), compute_metrics(predictions, names))["ece"]
        assert (interval.low, interval.high, interval.method, interval.resamples) == (None, None, None, None)
        assert "biased upwards in resamples" in (interval.reason or "")


def test_two_calibration_errors_differ_by_nothing_that_resamples_could_judge() -> None:
    first, second = overconfident(300), overconfident(300)
    logits = second.logits / 2
    found = paired_differences(first, Predictions.from_logits(second.index, second.label, logits), metrics=["ece"])[
        "ece"
    ]
    assert found.value is not None and found.value < 0
    assert found.p_value is None and found.interval.low is None and found.interval.reason


def test_a_bin_of_few_groups_has_no_interval() -> None:
    predictions = overconfident(600)
    groups = np.arange(600) // 6
    (confidences,) = Confidences.from_predictions(predictions)
    bins = compute_calibration(predictions.in_groups(groups), ["a", "b", "c"]).bins
    assert bins
    counts = [len(np.unique(groups[confidences.bins == number])) for number in range(len(bins))]
    assert min(count for count in counts if count) < 20 <= max(counts)
    for count, one in zip(counts, bins, strict=True):
        few = (one.interval.reason or "").startswith("fewer than 20 groups")
        assert few == (0 < count < 20)


def test_the_interval_of_the_score_contains_what_many_examples_give() -> None:
    names = ["a", "b", "c"]
    truth = compute_metrics(overconfident(400_000, seed=1), names).values
    predictions = overconfident(3_000)
    intervals = metric_intervals(predictions, compute_metrics(predictions, names))
    low, high, value = intervals["brier"].low, intervals["brier"].high, truth["brier"]
    assert low is not None and high is not None and value is not None
    assert low < value < high and high - low < 0.1
