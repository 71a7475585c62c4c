"""Metrics: scikit-learn's values if defined, else `None` and a reason, never NaN."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval.errors import ExactnessError
from dist_eval.metrics.calibration import calibration_metrics
from dist_eval.metrics.computing import Metrics, Totals, compute_metrics, require_same_totals
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.ranking import area_under_roc
from dist_eval.results.scores import ClassResults

AVERAGES = ("macro", "micro", "weighted")


def predictions_of(labels: list[int], guesses: list[int], classes: int) -> Predictions:
    """Predictions with these classes, more or less sure."""
    guessed = np.asarray(guesses, dtype=np.int64)
    logits = np.random.default_rng(len(labels)).uniform(-1, 1, size=(len(guessed), classes))
    logits[np.arange(len(guessed)), guessed] += 2
    return Predictions.from_logits(np.arange(len(labels)), np.asarray(labels), logits)


def names_of(classes: int) -> list[str]:
    return [f"class-{number}" for number in range(classes)]


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
    return {**figures, **calibration_metrics(predictions)}


@settings(max_examples=40, deadline=None)
@given(any_predictions(complete=True))
def test_figures_equal_scikit_learns(predictions: Predictions) -> None:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    assert metrics.undefined == {}
    assert metrics.values == pytest.approx(sklearn_figures(predictions), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(any_predictions(), st.integers(1, 20))
def test_metrics_do_not_depend_on_the_chunk_size(predictions: Predictions, cells: int) -> None:
    whole = compute_metrics(predictions, names_of(predictions.num_labels))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dist_eval.metrics.predictions._CELLS_IN_A_PIECE", cells)
        cut = compute_metrics(predictions, names_of(predictions.num_labels))
    assert cut.undefined == whole.undefined
    defined = set(whole.values) - set(whole.undefined)
    assert {name: cut.values[name] for name in defined} == pytest.approx(
        {name: whole.values[name] for name in defined}, rel=1e-12
    )
    assert cut.confusion.tolist() == whole.confusion.tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=40))
def test_the_area_under_the_curve_equals_scikit_learns_also_with_ties(pairs: list[tuple[bool, int]]) -> None:
    is_positive = np.asarray([*(first for first, _ in pairs), True, False])
    scores = np.asarray([*(second / 5 for _, second in pairs), 0.4, 0.6])
    expected = sk.roc_auc_score(is_positive, scores)
    assert area_under_roc(is_positive, scores) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=40, deadline=None)
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


@settings(max_examples=60, deadline=None)
@given(any_predictions())
def test_no_figure_is_nan_and_each_undefined_one_has_a_reason(predictions: Predictions) -> None:
    metrics = compute_metrics(predictions, names_of(predictions.num_labels))
    assert {name for name, value in metrics.values.items() if value is None} == set(metrics.undefined)
    assert all(value is None or math.isfinite(value) for value in metrics.values.values())
    assert all(len(reason) > 10 for reason in metrics.undefined.values())


@settings(max_examples=40, deadline=None)
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


def test_figures_worked_out_by_hand() -> None:
    metrics = metrics_of([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2], 3)
    assert metrics.confusion.tolist() == [[2, 1, 0], [0, 1, 1], [0, 0, 1]]
    assert metrics.values["accuracy"] == pytest.approx(4 / 6)
    assert metrics.values["precision_macro"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)
    assert metrics.values["recall_macro"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert metrics.values["f1_macro"] == pytest.approx((4 / 5 + 1 / 2 + 2 / 3) / 3)
    assert metrics.majority_share == 0.5


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


def test_a_single_example_is_enough() -> None:
    assert metrics_of([2], [2], 3).values["accuracy"] == 1.0


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


def parts_of(whole: Predictions, owner: np.ndarray, ranks: int) -> list[Predictions]:
    columns = ("index", "label", "logits", "loss")
    return [Predictions(*(getattr(whole, name)[owner == rank] for name in columns)) for rank in range(ranks)]


def add_up(parts: list[Totals]) -> Totals:
    return Totals(*(sum(getattr(part, name) for part in parts) for name in ("counts", "confusion", "loss")))


@settings(max_examples=60, deadline=None)
@given(any_predictions(), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_totals_of_the_parts_add_up_to_totals_of_the_whole(whole: Predictions, ranks: int, seed: int) -> None:
    owner = np.random.default_rng(seed).integers(0, ranks, size=len(whole))

    added, expected = add_up([Totals.of(part) for part in parts_of(whole, owner, ranks)]), Totals.of(whole)

    assert added.counts.tolist() == expected.counts.tolist()
    assert added.confusion.toarray().tolist() == expected.confusion.toarray().tolist()
    assert added.loss == pytest.approx(expected.loss, rel=1e-12)
    require_same_totals(added, expected)


@settings(max_examples=40, deadline=None)
@given(any_predictions())
def test_totals_agree_with_the_metrics(predictions: Predictions) -> None:
    totals, metrics = Totals.of(predictions), compute_metrics(predictions, names_of(predictions.num_labels))
    assert totals.samples == len(predictions)
    assert totals.counts[1] / totals.samples == metrics.values["accuracy"]
    assert totals.loss[0] / totals.samples == pytest.approx(metrics.values["loss"])
    assert totals.confusion.toarray().tolist() == metrics.confusion.tolist()


def test_totals_of_nothing_have_the_shape_and_dtype_of_any_others() -> None:
    nothing, something = Totals.of(Predictions.empty(4)), Totals.of(predictions_of([3], [1], 4))
    for name in ("counts", "confusion", "loss"):
        assert getattr(nothing, name).shape == getattr(something, name).shape
        assert getattr(nothing, name).dtype == getattr(something, name).dtype
        assert not getattr(nothing, name).sum()


def an_example_more(totals: dict[str, Any]) -> None:
    totals["counts"][0] += 1


def a_hit_less(totals: dict[str, Any]) -> None:
    totals["counts"][1] -= 1


def two_classes_swapped(totals: dict[str, Any]) -> None:
    totals["confusion"] = totals["confusion"].T.copy()


def a_prediction_moved(totals: dict[str, Any]) -> None:
    totals["confusion"][0, 0] -= 1
    totals["confusion"][0, 1] += 1


def a_rank_averaged_instead_of_summed(totals: dict[str, Any]) -> None:
    totals["loss"] /= 2


def a_loss_in_single_precision(totals: dict[str, Any]) -> None:
    totals["loss"] = totals["loss"].astype(np.float32).astype(np.float64)


def a_loss_that_is_nan(totals: dict[str, Any]) -> None:
    totals["loss"][0] = np.nan


def a_loss_that_is_infinite(totals: dict[str, Any]) -> None:
    totals["loss"][0] = np.inf


@pytest.mark.parametrize(
    ("corrupt", "named"),
    [
        (an_example_more, "counts"),
        (a_hit_less, "counts"),
        (two_classes_swapped, "confusion"),
        (a_prediction_moved, "confusion"),
        (a_rank_averaged_instead_of_summed, "loss"),
        (a_loss_in_single_precision, "loss"),
        (a_loss_that_is_nan, "loss"),
        (a_loss_that_is_infinite, "loss"),
    ],
)
@pytest.mark.parametrize("road", ["reduced", "gathered"])
def test_each_corruption_of_a_total_is_caught(corrupt: Callable[[dict[str, Any]], None], named: str, road: str) -> None:
    true = Totals.of(predictions_of([0, 0, 1, 2, 2, 1], [0, 1, 1, 2, 0, 1], 3))
    columns = {name: getattr(true, name).copy() for name in ("counts", "confusion", "loss")}
    corrupt(columns)
    roads = {"reduced": true, "gathered": true, road: Totals(**columns)}

    with pytest.raises(ExactnessError, match=f"The {named} do not agree") as caught:
        require_same_totals(**roads)

    values = columns[named].toarray() if named == "confusion" else columns[named]
    assert str(values.tolist()) in str(caught.value)


def test_two_orders_of_summation_agree() -> None:
    losses = np.random.default_rng(0).exponential(size=100_000)
    empty = Totals.of(Predictions.empty(2))
    forward, backward = (
        Totals(empty.counts, empty.confusion, np.array([np.add.accumulate(order)[-1]]))
        for order in (losses, losses[::-1])
    )
    assert forward.loss != backward.loss
    require_same_totals(forward, backward)
