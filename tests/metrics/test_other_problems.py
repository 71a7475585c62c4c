"""Multi-label and regression metrics: scikit-learn's and SciPy's values, and a reason for undefined ones."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import names_of
from scipy import stats

from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION


def labelled(label: np.ndarray, seed: int = 0) -> Predictions:
    logits = np.random.default_rng(seed).normal(size=label.shape) + np.where(label, 0.5, -0.5)
    return Predictions.from_logits(np.arange(len(label)), label, logits.round(1), MULTI_LABEL)


@st.composite
def any_labels(draw: st.DrawFn) -> Predictions:
    rows, labels, seed = draw(st.integers(1, 40)), draw(st.integers(2, 6)), draw(st.integers(0, 999))
    return labelled(np.random.default_rng(seed).random((rows, labels)) < draw(st.floats(0, 1)), seed)


@settings(max_examples=80)
@given(any_labels())
def test_metrics_of_labels_are_scikit_learns_where_they_are_defined(predictions: Predictions) -> None:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    label, guess, scores = predictions.label, predictions.prediction, predictions.probabilities
    expected = {
        "subset_accuracy": sk.accuracy_score(label, guess),
        "hamming_loss": sk.hamming_loss(label, guess),
        "loss": predictions.loss.mean(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for average in ("macro", "micro", "weighted"):
            values = sk.precision_recall_fscore_support(label, guess, average=average, zero_division=0)
            for name, value in zip(("precision", "recall", "f1"), values[:3], strict=True):
                expected[f"{name}_{average}"] = value
                reason = metrics.undefined.get(f"{name}_{average}", "")
                if "counted as 0" in reason:
                    assert f"it would be {value:.4f}" in reason
        for average in ("macro", "weighted"):
            expected[f"average_precision_{average}"] = sk.average_precision_score(label, scores, average=average)
            if f"roc_auc_{average}" not in metrics.undefined:
                expected[f"roc_auc_{average}"] = sk.roc_auc_score(label, scores, average=average)
    values = {name: value for name, value in metrics.values.items() if name not in ("ece", "brier")}
    assert {name for name, value in values.items() if value is None} == set(metrics.undefined)
    assert {name: value for name, value in values.items() if value is not None} == pytest.approx(
        {name: value for name, value in expected.items() if name not in metrics.undefined}, rel=1e-12
    )
    assert metrics.confusion.tolist() == sk.multilabel_confusion_matrix(label, guess).tolist()


@settings(max_examples=40)
@given(any_labels())
def test_the_metrics_of_each_label_are_those_of_a_binary_problem(predictions: Predictions) -> None:
    for number, row in enumerate(compute_metrics(predictions, names_of(predictions.num_labels)).per_class):
        label, guess = predictions.label[:, number], predictions.prediction[:, number]
        for name, score in (("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score)):
            expected = score(label, guess, zero_division=np.nan)
            assert getattr(row, name) == (None if math.isnan(expected) else pytest.approx(expected))
        assert row.support == label.sum()


def test_a_label_that_nobody_has_leaves_averages_undefined() -> None:
    label = np.array([[True, False], [False, False], [True, False]])
    logits = np.array([[1.0, -1], [-1, -1], [-1, -1]])
    metrics = compute_metrics(Predictions.from_logits(np.arange(3), label, logits, MULTI_LABEL), ["a", "b"])
    assert metrics.undefined["f1_macro"].startswith("label 'b' has no examples and was never predicted")
    assert metrics.values["f1_micro"] == metrics.values["f1_weighted"] == pytest.approx(2 / 3)
    assert metrics.undefined["roc_auc_macro"] == "label 'b' with only examples with it, or none"


def test_one_label_is_one_question() -> None:
    predictions = labelled(np.array([[True], [False], [True], [True], [False]]))
    metrics = compute_metrics(predictions, ["yes"])
    expected = sk.f1_score(predictions.label[:, 0], predictions.prediction[:, 0])
    assert [metrics.values[f"f1_{average}"] for average in ("macro", "micro", "weighted")] == pytest.approx(
        [expected] * 3
    )


def regression(label: np.ndarray, output: np.ndarray) -> Predictions:
    return Predictions.from_logits(np.arange(len(label)), label, output, REGRESSION)


@st.composite
def any_outputs(draw: st.DrawFn) -> Predictions:
    generator = np.random.default_rng(draw(st.integers(0, 999)))
    shape = draw(st.integers(3, 40)), draw(st.integers(1, 4))
    label = generator.normal(size=shape) * draw(st.sampled_from([1e-3, 1.0, 1e4])) + draw(st.sampled_from([0, 1000]))
    return regression(
        label.round(3) if draw(st.booleans()) and label.std() > 0.1 else label, label + generator.normal(size=shape)
    )


@settings(max_examples=60)
@given(any_outputs())
def test_metrics_of_a_regression_are_those_of_the_libraries(predictions: Predictions) -> None:
    names = names_of(predictions.num_labels)
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
    for row, name, pair in zip(metrics.per_class, names, columns, strict=True):
        assert row.label == name
        assert (row.mae, row.r2) == pytest.approx((sk.mean_absolute_error(*pair), sk.r2_score(*pair)))
        assert row.spearman == pytest.approx(stats.spearmanr(*pair).statistic)
    assert (metrics.majority_share, metrics.confusion.size) == (None, 0)


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_no_finite_number_is_an_error(odd: float) -> None:
    for predictions in (regression(np.eye(2), np.full((2, 2), odd)), regression(np.full((2, 2), odd), np.eye(2))):
        with pytest.raises(ValueError, match="contains NaN or infinity"):
            compute_metrics(predictions, ["a", "b"])


def test_equal_labels_leave_what_compares_with_their_spread_undefined() -> None:
    metrics = compute_metrics(regression(np.full((3, 1), 2.0), np.array([[1.0], [2.0], [3.0]])), ["score"])
    assert set(metrics.undefined) == {"r2", "pearson", "spearman"}
    assert metrics.undefined["r2"] == "all labels are equal"
    assert metrics.values["mae"] == pytest.approx(2 / 3)
    metrics = compute_metrics(regression(np.array([[1.0], [2.0]]), np.zeros((2, 1))), ["score"])
    assert metrics.undefined == dict.fromkeys(("pearson", "spearman"), "all outputs are equal")


def test_the_output_that_leaves_a_mean_undefined_is_named() -> None:
    label = np.array([[1.0, 7.0], [2.0, 7.0], [4.0, 7.0]])
    metrics = compute_metrics(regression(label, label + np.array([[0.1, 1], [0.2, 2], [0.1, 3]])), ["a", "b"])
    assert metrics.undefined["r2"] == "all labels are equal (output 'b')"
    assert metrics.per_class[0].r2 is not None and metrics.per_class[1].r2 is None


def test_squares_that_are_too_large_are_a_reason() -> None:
    label = np.array([[1e155], [2e155], [-1e155], [3.0]])
    found = compute_metrics(regression(label, np.zeros((4, 1))), ["score"])
    assert found.values["mae"] == pytest.approx(1e155)
    squares = ("mse", "rmse", "r2", "loss")
    assert [found.values[name] for name in squares] == [None] * 4
    assert {found.undefined[name] for name in squares} == {"squares of the values exceed the range of 64-bit floats"}
    assert found.per_class[0].mse is None
