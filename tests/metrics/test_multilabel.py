"""Multi-label metrics: scikit-learn's values, and a reason for undefined ones."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval.data.problem_types import MULTI_LABEL
from dist_eval.metrics.calibration import calibration_metrics
from dist_eval.metrics.computing import Totals, compute_metrics, require_same_totals
from dist_eval.metrics.multilabel import label_confusion
from dist_eval.metrics.predictions import Predictions


def predictions_of(label: np.ndarray, seed: int = 0) -> Predictions:
    logits = np.random.default_rng(seed).normal(size=label.shape) + np.where(label, 0.5, -0.5)
    return Predictions.from_logits(np.arange(len(label)), label, logits, MULTI_LABEL)


@st.composite
def any_predictions(draw: st.DrawFn) -> Predictions:
    rows, labels, seed = draw(st.integers(1, 40)), draw(st.integers(2, 6)), draw(st.integers(0, 999))
    return predictions_of(np.random.default_rng(seed).random((rows, labels)) < draw(st.floats(0, 1)), seed)


def names_of(predictions: Predictions) -> list[str]:
    return [f"label-{number}" for number in range(predictions.num_labels)]


@settings(max_examples=80, deadline=None)
@given(any_predictions())
def test_figures_equal_scikit_learns_where_they_are_defined(predictions: Predictions) -> None:
    metrics = compute_metrics(predictions, names_of(predictions))
    label, guess, scores = predictions.label, predictions.prediction, predictions.probabilities
    expected = {
        "subset_accuracy": sk.accuracy_score(label, guess),
        "hamming_loss": sk.hamming_loss(label, guess),
        "loss": predictions.loss.mean(),
        **calibration_metrics(predictions),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for average in ("macro", "micro", "weighted"):
            figures = sk.precision_recall_fscore_support(label, guess, average=average, zero_division=np.nan)
            as_zero = sk.precision_recall_fscore_support(label, guess, average=average, zero_division=0)
            for name, figure, zero in zip(("precision", "recall", "f1"), figures[:3], as_zero[:3], strict=True):
                expected[f"{name}_{average}"] = figure if f"{name}_{average}" not in metrics.undefined else None
                reason = metrics.undefined.get(f"{name}_{average}", "")
                if "counted as 0" in reason:
                    assert f"it would be {zero:.4f}" in reason
        for average in ("macro", "weighted"):
            if f"roc_auc_{average}" not in metrics.undefined:
                expected[f"roc_auc_{average}"] = sk.roc_auc_score(label, scores, average=average)
            if f"average_precision_{average}" not in metrics.undefined:
                expected[f"average_precision_{average}"] = sk.average_precision_score(label, scores, average=average)
    defined = {name: value for name, value in metrics.values.items() if value is not None}
    assert defined == pytest.approx({name: value for name, value in expected.items() if value is not None}, rel=1e-12)
    assert set(metrics.undefined) == set(metrics.values) - set(defined)
    assert metrics.confusion.tolist() == sk.multilabel_confusion_matrix(label, guess).tolist()


@settings(max_examples=40, deadline=None)
@given(any_predictions())
def test_the_metrics_of_each_label_are_those_of_a_binary_problem(predictions: Predictions) -> None:
    for number, row in enumerate(compute_metrics(predictions, names_of(predictions)).per_class):
        label, guess = predictions.label[:, number], predictions.prediction[:, number]
        for name, figure in (("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score)):
            expected = figure(label, guess, zero_division=np.nan)
            assert getattr(row, name) == (None if math.isnan(expected) else pytest.approx(expected))
        assert row.support == label.sum()


def test_a_label_that_nobody_has_leaves_averages_undefined() -> None:
    label = np.array([[True, False], [False, False], [True, False]])
    logits = np.array([[1.0, -1], [-1, -1], [-1, -1]])
    metrics = compute_metrics(Predictions.from_logits(np.arange(3), label, logits, MULTI_LABEL), ["a", "b"])
    assert metrics.undefined["f1_macro"].startswith("label 'b' has no examples and was never predicted")
    assert metrics.values["f1_micro"] == metrics.values["f1_weighted"] == pytest.approx(2 / 3)
    assert metrics.values["roc_auc_macro"] is None


def test_one_label_is_one_question() -> None:
    predictions = predictions_of(np.array([[True], [False], [True], [True], [False]]))
    metrics = compute_metrics(predictions, ["yes"])
    expected = sk.f1_score(predictions.label[:, 0], predictions.prediction[:, 0])
    assert [metrics.values[f"f1_{average}"] for average in ("macro", "micro", "weighted")] == pytest.approx(
        [expected] * 3
    )


@settings(max_examples=40, deadline=None)
@given(any_predictions(), st.integers(1, 30))
def test_totals_do_not_depend_on_pieces_or_ranks(predictions: Predictions, cells: int) -> None:
    whole = Totals.of(predictions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dist_eval.metrics.predictions._CELLS_IN_A_PIECE", cells)
        require_same_totals(whole, Totals.of(predictions))
    assert whole.counts[1] == (predictions.label == predictions.prediction).all(axis=1).sum()
    assert whole.confusion.sum() == len(predictions) * predictions.num_labels
    assert label_confusion(predictions.label[:0], predictions.label[:0]).sum() == 0
