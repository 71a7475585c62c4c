"""Losses, predictions and probabilities of every kind of problem, and how their columns travel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dist_eval.data.collector import Collector, narrowed
from dist_eval.data.problem_types import (
    MULTI_LABEL,
    PROBLEMS,
    REGRESSION,
    SINGLE_LABEL,
    Problem,
    default_problem,
    problem_of,
)
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.metrics.predictions import Predictions

logits = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 8), st.integers(1, 5)), elements=st.floats(-1e4, 1e4, width=32)
)
every_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


@settings(max_examples=60)
@given(logits, st.integers(0, 999))
def test_losses_of_several_labels_and_of_numbers_are_torchs(values: np.ndarray, seed: int) -> None:
    generator, outputs = np.random.default_rng(seed), torch.from_numpy(values).double()
    label = generator.random(values.shape) < 0.5
    expected = torch.nn.BCEWithLogitsLoss(reduction="none")(outputs, torch.from_numpy(label).double()).mean(1)
    np.testing.assert_allclose(MULTI_LABEL.loss(values, label), expected.numpy(), rtol=1e-12, atol=1e-14)
    numbers = generator.normal(size=values.shape)
    expected = torch.nn.MSELoss(reduction="none")(outputs, torch.from_numpy(numbers)).mean(1)
    np.testing.assert_allclose(REGRESSION.loss(values, numbers), expected.numpy(), rtol=1e-12)


@settings(max_examples=60)
@given(logits)
def test_a_label_is_predicted_if_it_is_more_probable_than_not(values: np.ndarray) -> None:
    probabilities = MULTI_LABEL.probabilities(values)
    np.testing.assert_allclose(
        probabilities, torch.from_numpy(values).double().sigmoid().numpy(), rtol=1e-12, atol=1e-300
    )
    far = np.abs(values) > 1e-6
    assert ((probabilities > 0.5) == MULTI_LABEL.predict(values))[far].all()


@every_problem
def test_columns_survive_a_journey_and_a_collector(problem: Problem) -> None:
    predictions = synthetic_predictions(problem, 3)
    assert predictions.problem is problem
    collector = Collector(len(predictions), Predictions.empty(3, problem).columns)
    for piece in (predictions.rows(4, len(predictions)), predictions.rows(0, 4), Predictions.empty(3, problem)):
        collector.add(narrowed(piece.columns, 0, len(piece)))
    for name, column in collector.sorted_by("index").items():
        np.testing.assert_array_equal(column, getattr(predictions, name))
        assert column.dtype == getattr(predictions, name).dtype


def test_the_dtype_of_labels_tells_the_problem() -> None:
    assert [problem_of(np.dtype(kind)) for kind in (np.uint8, np.bool_, np.float64)] == [
        SINGLE_LABEL,
        MULTI_LABEL,
        REGRESSION,
    ]
    with pytest.raises(ValueError, match="labels cannot be"):
        problem_of(np.dtype("U3"))


def test_a_head_of_one_output_is_a_regression_unless_it_says_otherwise() -> None:
    assert (default_problem(1), default_problem(2)) == (REGRESSION, SINGLE_LABEL)


def test_a_regression_has_no_probabilities() -> None:
    with pytest.raises(ValueError, match="not probabilities"):
        _ = synthetic_predictions(REGRESSION, 2).probabilities
