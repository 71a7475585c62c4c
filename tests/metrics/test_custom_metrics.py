"""Custom metrics: the arrays that they are given, and the numbers that they may return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sample_metrics

from dist_eval.metrics.custom_metrics import MetricInputs, custom_results, numbers_by_name
from dist_eval.metrics.metric_loading import load_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL


def test_the_inputs_of_a_metric_match_the_problem_type() -> None:
    label = np.array([[True, False], [True, True]])
    logits = np.array([[2.0, -1], [-3, 0]])
    several = MetricInputs.of(Predictions.from_logits(np.arange(2), label, logits, MULTI_LABEL))
    assert several.predictions.tolist() == [[1, 0], [0, 0]]
    assert (several.labels.tolist(), several.labels.dtype) == ([[1, 0], [1, 1]], np.int64)
    assert several.probabilities is not None
    one = MetricInputs.of(
        Predictions.from_logits(np.arange(2), np.array([[0.5], [2]]), np.array([[1.0], [3]]), REGRESSION)
    )
    assert (one.predictions.tolist(), one.labels.tolist(), one.probabilities) == ([1.0, 3.0], [0.5, 2.0], None)
    two = MetricInputs.of(Predictions.from_logits(np.arange(1), np.array([[0.5, 2]]), np.array([[1.0, 3]]), REGRESSION))
    assert two.labels.tolist() == [[0.5, 2.0]]


@pytest.mark.parametrize(
    ("value", "figures"),
    [
        (0.5, {"m": 0.5}),
        (np.float32(0.5), {"m": 0.5}),
        (np.array(3), {"m": 3.0}),
        (np.array([3]), {"m": 3.0}),
        ({"m": 1}, {"m": 1.0}),
        ({"a": 1, "b": np.int64(2)}, {"m/a": 1.0, "m/b": 2.0}),
    ],
)
def test_numbers_of_any_kind_are_results(value: Any, figures: dict[str, float]) -> None:
    assert numbers_by_name("m", value) == figures


def test_metrics_get_all_examples_in_dataset_order_and_one_that_fails_leaves_the_others_alone() -> None:
    generator = np.random.default_rng(0)
    found = Predictions.from_logits(np.arange(50), generator.integers(3, size=50), generator.normal(size=(50, 3)))
    names = ["error_rate", "f2", "fails_on_many", "nan", "order"]
    metrics = load_metrics([f"sample_metrics:{name}" for name in names], SINGLE_LABEL, 3, built_in=["loss"])
    results = custom_results(metrics, MetricInputs.of(found))
    arguments = found.prediction, found.label, found.probabilities
    assert results.values == {
        "error_rate": sample_metrics.error_rate(*arguments),
        "f2": sample_metrics.f2(*arguments),
        "fails_on_many": None,
        "nan": None,
        **{f"order/{name}": value for name, value in sample_metrics.order(*arguments).items()},
    }
    assert results.undefined == {
        "fails_on_many": "the metric raised RuntimeError: too many for me.",
        "nan": "the metric gave nan",
    }
