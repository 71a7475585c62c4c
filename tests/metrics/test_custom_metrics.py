"""Custom metrics: the arrays that they are given, and the numbers that they may return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION
from dist_eval.metrics.custom_metrics import Inputs, numbers_by_name
from dist_eval.metrics.predictions import Predictions

CLASSES = 3
REDUCED = ("Hits", "MeanTop", "Surest", "LeastSure", "LogLoss")


def test_the_inputs_of_a_metric_match_the_problem_type() -> None:
    label = np.array([[True, False], [True, True]])
    several = Inputs.of(Predictions.from_logits(np.arange(2), label, np.array([[2.0, -1], [-3, 0]]), MULTI_LABEL))
    assert several.predictions.tolist() == [[1, 0], [0, 0]]
    assert (several.labels.tolist(), several.labels.dtype) == ([[1, 0], [1, 1]], np.int64)
    assert several.probabilities is not None
    one = Inputs.of(Predictions.from_logits(np.arange(2), np.array([[0.5], [2]]), np.array([[1.0], [3]]), REGRESSION))
    assert (one.predictions.tolist(), one.labels.tolist(), one.probabilities) == ([1.0, 3.0], [0.5, 2.0], None)
    two = Inputs.of(Predictions.from_logits(np.arange(1), np.array([[0.5, 2]]), np.array([[1.0, 3]]), REGRESSION))
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
