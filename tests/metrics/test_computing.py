"""Metrics: scikit-learn's values if defined, else `None` and a reason, never NaN."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import names_of, predictions_of

from dist_eval.metrics.catalogue import METRICS, SHARE, Metric
from dist_eval.metrics.computing import Metrics, compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import SINGLE_LABEL
from dist_eval.results.scores import ClassResults

AVERAGES = ("macro", "micro", "weighted")


def metrics_of(labels: list[int], guesses: list[int], classes: int) -> Metrics:
    return compute_metrics(predictions_of(labels, guesses, classes), names_of(classes))


@st.composite
def any_predictions(draw: st.DrawFn, complete: bool = False) -> Predictions:
    """Random predictions; the complete ones have every class among the labels and among the guesses."""
    classes = draw(st.integers(2, 6))
    numbers = st.integers(0, classes - 1)
    pairs = draw(st.lists(st.tuples(numbers, numbers), min_size=0 if complete else 1, max_size=40))
    if complete:
        pairs += [(number, (number + 1) % classes) for number in range(classes)]
    return predictions_of([label for label, _ in pairs], [guess for _, guess in pairs], classes)


def sklearn_figures(predictions: Predictions) -> dict[str, float]:
    labels, guesses, classes = predictions.label, predictions.prediction, np.arange(predictions.num_labels)
    figures = {
        "accuracy": sk.accuracy_score(labels, guesses),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, guesses),
        "mcc": sk.matthews_corrcoef(labels, guesses),
        "log_loss": sk.log_loss(labels, predictions.probabilities, labels=classes),
        "loss": sk.log_loss(labels, predictions.probabilities, labels=classes),
    }
    for average in AVERAGES:
        figures[f"precision_{average}"] = sk.precision_score(labels, guesses, average=average)
        figures[f"recall_{average}"] = sk.recall_score(labels, guesses, average=average)
        figures[f"f1_{average}"] = sk.f1_score(labels, guesses, average=average)
    if len(classes) == 2:
        figures["roc_auc"] = sk.roc_auc_score(labels, predictions.probabilities[:, 1])
    else:
        for average in ("macro", "weighted"):
            figures[f"roc_auc_ovr_{average}"] = sk.roc_auc_score(
                labels, predictions.probabilities, multi_class="ovr", average=average
            )
    return figures


@settings(max_examples=40)
@given(any_predictions(complete=True))
def test_figures_equal_scikit_learns(predictions: Predictions) -> None:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    assert metrics.undefined == {}
    values = {name: value for name, value in metrics.values.items() if name not in ("ece", "brier")}
    assert values == pytest.approx(sklearn_figures(predictions), rel=1e-12)


@settings(max_examples=40)
@given(any_predictions())
def test_confusion_matrix_and_classes_equal_scikit_learns(predictions: Predictions) -> None:
    classes = predictions.num_labels
    metrics = compute_metrics(predictions, names_of(classes))
    labels, guesses = predictions.label, predictions.prediction

    assert metrics.confusion.tolist() == sk.confusion_matrix(labels, guesses, labels=range(classes)).tolist()
    precision, recall, f1, support = sk.precision_recall_fscore_support(
        labels, guesses, labels=range(classes), zero_division=np.nan
    )
    for number, row in enumerate(metrics.per_class):
        expected = {"precision": precision[number], "recall": recall[number], "f1": f1[number]}
        assert row.label == f"class-{number}"
        assert row.support == support[number]
        for name, value in expected.items():
            assert getattr(row, name) == (None if math.isnan(value) else pytest.approx(value, rel=1e-12))
    assert metrics.majority_share == support.max() / len(labels)


@settings(max_examples=60)
@given(any_predictions())
def test_no_figure_is_nan_and_each_undefined_one_has_a_reason(predictions: Predictions) -> None:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    assert {name for name, value in metrics.values.items() if value is None} == set(metrics.undefined)
    assert all(value is None or math.isfinite(value) for value in metrics.values.values())
    assert all(len(reason) > 10 for reason in metrics.undefined.values())


def test_an_undefined_figure_that_nothing_explains_has_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Metric("own", SHARE, lambda counts: (counts.right - counts.right) / (counts.right - counts.right))
    monkeypatch.setitem(METRICS, SINGLE_LABEL.name, (*METRICS[SINGLE_LABEL.name], own))
    predictions = Predictions.from_logits(index=[0, 1], label=[0, 1], logits=[[2.0, 0.0], [0.0, 3.0]])
    metrics = compute_metrics(predictions, ["a", "b"])
    assert metrics.values["own"] is None
    assert metrics.undefined["own"] == "its formula gives nan for these data"


@settings(max_examples=40)
@given(any_predictions())
def test_defined_averages_equal_scikit_learns_also_when_others_are_undefined(predictions: Predictions) -> None:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for figure, score in (("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score)):
            for average in AVERAGES:
                expected = score(predictions.label, predictions.prediction, average=average, zero_division=0)
                value, name = metrics.values[f"{figure}_{average}"], f"{figure}_{average}"
                if value is None:
                    assert f"counted as 0, it would be {expected:.4f}" in metrics.undefined[name]
                else:
                    assert value == pytest.approx(expected, rel=1e-12)


def test_one_class_among_labels_and_guesses() -> None:
    metrics = metrics_of([1, 1, 1], [1, 1, 1], 2)
    assert metrics.values["accuracy"] == 1.0
    assert metrics.undefined["mcc"] == "needs at least two classes among labels and among predictions"
    assert metrics.undefined["roc_auc"] == "class 'class-0' without examples"
    assert metrics.per_class[0] == ClassResults(label="class-0", precision=None, recall=None, f1=None, support=0)


def test_a_class_that_is_never_predicted() -> None:
    metrics = metrics_of([0, 1, 2, 0], [0, 1, 1, 0], 3)
    for average in ("macro", "weighted"):
        assert metrics.values[f"precision_{average}"] is None
        assert metrics.undefined[f"precision_{average}"].startswith("class 'class-2' was never predicted")
    assert metrics.per_class[2] == ClassResults(label="class-2", precision=None, recall=0.0, f1=0.0, support=1)
    assert metrics.values["recall_macro"] == pytest.approx(2 / 3)
    several = metrics_of([0, 1, 2, 3], [0, 1, 1, 0], 4).undefined["precision_macro"]
    assert several.startswith("classes 'class-2', 'class-3' were never predicted")
    assert metrics.values["roc_auc_ovr_macro"] is not None


def test_a_class_that_is_predicted_but_has_no_examples() -> None:
    metrics = metrics_of([0, 1, 0], [0, 1, 2], 3)
    assert metrics.values["recall_macro"] is None
    assert metrics.undefined["recall_macro"].startswith("class 'class-2' has no examples")
    assert metrics.values["recall_weighted"] == pytest.approx(2 / 3)
    assert metrics.values["precision_macro"] == pytest.approx(2 / 3)
    assert metrics.undefined["roc_auc_ovr_weighted"] == "class 'class-2' without examples"
    assert metrics.per_class[2] == ClassResults(label="class-2", precision=0.0, recall=None, f1=0.0, support=0)


def test_a_class_that_does_not_occur_at_all_leaves_the_averages_alone() -> None:
    values = metrics_of([0, 1, 0], [0, 1, 1], 3).values
    assert values["precision_macro"] == pytest.approx((1 + 1 / 2) / 2)
    assert values["recall_macro"] == pytest.approx((1 / 2 + 1) / 2)
    assert values["roc_auc_ovr_macro"] is None


def test_a_reason_names_five_classes_at_most() -> None:
    reason = metrics_of([0, 1], [0, 1], 9).undefined["roc_auc_ovr_macro"]
    assert reason == "classes 'class-2', 'class-3', 'class-4', 'class-5', 'class-6', ... without examples"


def test_a_head_with_one_class_has_figures_too() -> None:
    metrics = metrics_of([0, 0, 0], [0, 0, 0], 1)
    assert metrics.values["accuracy"] == 1.0
    assert metrics.values["loss"] == 0.0
    assert {name for name, value in metrics.values.items() if value is None} == set(metrics.undefined)
    assert all(value is None or math.isfinite(value) for value in metrics.values.values())


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_not_a_number_is_an_error(odd: float) -> None:
    predictions = Predictions.from_logits(np.arange(2), np.array([0, 1]), np.array([[1.0, 2.0], [odd, 0.0]]))
    with pytest.raises(ValueError, match="contains NaN or infinity"):
        compute_metrics(predictions, names_of(2))


def test_huge_logits_give_finite_figures() -> None:
    logits = np.array([[3e38, -3e38], [3e38, -3e38]])
    values = compute_metrics(Predictions.from_logits(np.arange(2), np.array([0, 1]), logits), names_of(2)).values
    assert values["loss"] == pytest.approx(3e38, rel=1e-6)
    assert all(value is None or math.isfinite(value) for value in values.values())


@pytest.mark.parametrize(
    ("labels", "guesses"), [([1, 1], [1, 1]), ([0, 1], [1, 1]), ([1, 1], [0, 1]), ([0, 0, 1], [2, 2, 2])]
)
def test_undefined_figures_come_without_warnings(labels: list[int], guesses: list[int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metrics_of(labels, guesses, 3).undefined
