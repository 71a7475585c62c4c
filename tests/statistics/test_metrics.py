"""Intervals of regression and multi-label metrics."""

from __future__ import annotations

import numpy as np
import pytest

from dist_eval.metrics.computing import Metrics, compute_metrics
from dist_eval.metrics.definitions import UNKNOWN
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, PROBLEMS, REGRESSION, Problem
from dist_eval.statistics import metric_intervals


def regression(rows: int, outputs: int, seed: int, shift: float = 0.0) -> Predictions:
    generator = np.random.default_rng(seed)
    label = generator.normal(size=(rows, outputs)).round(1) + shift
    logits = (label + generator.normal(size=label.shape)).astype(np.float32)
    return Predictions.from_logits(np.arange(rows), label, logits, REGRESSION)


def labelled(rows: int, labels: int, seed: int) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(rows, labels)).astype(np.float32).round(1)
    label = generator.random((rows, labels)) < 1 / (1 + np.exp(-2 * logits))
    return Predictions.from_logits(np.arange(rows), label, logits, MULTI_LABEL)


def metrics_of(predictions: Predictions) -> Metrics:
    return compute_metrics(predictions, [f"output {i}" for i in range(predictions.num_labels)])


def test_targets_of_a_hundred_thousandth_have_intervals_of_that() -> None:
    large = regression(200, 1, 0)
    small = Predictions.from_logits(large.index, large.label * 1e-5, large.logits.astype(np.float64) * 1e-5, REGRESSION)
    first, second = (metric_intervals(one, metrics_of(one), resamples=500) for one in (large, small))
    scales = {"mae": 1e-5, "rmse": 1e-5, "mse": 1e-10, "loss": 1e-10, "r2": 1.0, "pearson": 1.0, "spearman": 1.0}
    for name, scale in scales.items():
        ends = [(one[name].low, one[name].high) for one in (first, second)]
        assert None not in ends[0] + ends[1], (name, second[name].reason)
        assert np.array(ends[1]) / scale == pytest.approx(np.array(ends[0]), rel=1e-5), name


@pytest.mark.parametrize("predictions", [regression(300, 2, 1), labelled(300, 3, 1)], ids=["regression", "labels"])
def test_every_figure_has_an_interval_around_it_or_a_reason(predictions: Predictions) -> None:
    metrics = metrics_of(predictions)
    found = metric_intervals(predictions, metrics, resamples=500)
    assert list(found) == list(metrics.values)
    for name, interval in found.items():
        if name == "ece":
            assert interval.low is None and interval.reason
            continue
        value = metrics.values[name]
        assert interval.low is not None and interval.high is not None and value is not None, name
        assert interval.low < value < interval.high, name
    groups = np.arange(300) // 10
    clustered = metric_intervals(predictions.in_groups(groups), metrics, resamples=200)
    assert clustered["loss"].low != found["loss"].low


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.name)
@pytest.mark.parametrize("outputs", [2, 3])
def test_every_metric_can_be_resampled(problem: Problem, outputs: int) -> None:
    predictions = synthetic_predictions(problem, outputs)
    found = metric_intervals(predictions, metrics_of(predictions), resamples=50)
    assert [name for name, interval in found.items() if interval.reason == UNKNOWN] == []
