"""Regression metrics: scikit-learn's and SciPy's values, and a reason for undefined ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dist_eval.data.problem_types import REGRESSION
from dist_eval.errors import ExactnessError
from dist_eval.metrics.computing import Totals, compute_metrics, require_same_totals
from dist_eval.metrics.predictions import Predictions


def predictions_of(label: np.ndarray, output: np.ndarray) -> Predictions:
    return Predictions.from_logits(np.arange(len(label)), label, output, REGRESSION)


@st.composite
def any_predictions(draw: st.DrawFn) -> Predictions:
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    shape = draw(st.integers(3, 40)), draw(st.integers(1, 4))
    label = generator.normal(size=shape) * draw(st.sampled_from([1e-3, 1.0, 1e4]))
    return predictions_of(
        label.round(3) if draw(st.booleans()) and label.std() > 0.1 else label, generator.normal(size=shape)
    )


@settings(max_examples=60, deadline=None)
@given(any_predictions())
def test_figures_equal_those_of_the_libraries(predictions: Predictions) -> None:
    names = [f"output-{number}" for number in range(predictions.num_labels)]
    metrics = compute_metrics(predictions, names)
    label, output = predictions.label, predictions.prediction
    columns = list(zip(label.T, output.T, strict=True))
    assert metrics.undefined == {}
    assert metrics.values == pytest.approx(
        {
            "mae": sk.mean_absolute_error(label, output),
            "mse": sk.mean_squared_error(label, output),
            "rmse": sk.root_mean_squared_error(label, output),
            "r2": sk.r2_score(label, output),
            "pearson": np.mean([stats.pearsonr(*pair).statistic for pair in columns]),
            "spearman": np.mean([stats.spearmanr(*pair).statistic for pair in columns]),
            "loss": sk.mean_squared_error(label, output),
        },
        rel=1e-9,
    )
    assert [row.label for row in metrics.per_class] == names
    assert [row.mae for row in metrics.per_class] == pytest.approx([abs(y - p).mean() for y, p in columns])
    assert (metrics.majority_share, metrics.confusion.size) == (None, 0)


def test_equal_labels_leave_what_compares_with_their_spread_undefined() -> None:
    metrics = compute_metrics(predictions_of(np.full((3, 1), 2.0), np.array([[1.0], [2.0], [3.0]])), ["score"])
    assert set(metrics.undefined) == {"r2", "pearson", "spearman"}
    assert metrics.undefined["r2"] == "all labels are equal"
    assert metrics.values["mae"] == pytest.approx(2 / 3)
    metrics = compute_metrics(predictions_of(np.array([[1.0], [2.0]]), np.zeros((2, 1))), ["score"])
    assert metrics.undefined == dict.fromkeys(("pearson", "spearman"), "all outputs are equal")


def test_the_output_that_leaves_a_mean_undefined_is_named() -> None:
    label = np.array([[1.0, 7.0], [2.0, 7.0], [4.0, 7.0]])
    metrics = compute_metrics(predictions_of(label, label + np.array([[0.1, 1], [0.2, 2], [0.1, 3]])), ["a", "b"])
    assert metrics.undefined["r2"] == "all labels are equal (output 'b')"
    assert metrics.per_class[0].r2 is not None


@pytest.mark.parametrize("column", [0, 1])
def test_totals_that_disagree_are_caught(column: int) -> None:
    true = Totals.of(predictions_of(np.array([[1.0], [2.0]]), np.array([[1.5], [0.0]])))
    assert true.errors.tolist() == [[2.5, 4.25]]
    errors = true.errors.copy()
    errors[0, column] += 1e-6
    with pytest.raises(ExactnessError, match="The errors do not agree"):
        require_same_totals(true, replace(true, errors=errors))
    require_same_totals(true, true)
