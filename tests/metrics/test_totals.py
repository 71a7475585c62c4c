"""Totals: those of parts add up to those of the whole, and any difference is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval.errors import ExactnessError
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.totals import Totals, require_same_totals
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL, Problem

TOTALS = ("counts", "confusion", "loss", "errors")


def predictions_of(examples: int, outputs: int, seed: int, problem: Problem = SINGLE_LABEL) -> Predictions:
    generator = np.random.default_rng(seed)
    label: np.ndarray = generator.integers(outputs, size=examples)
    if problem is MULTI_LABEL:
        label = generator.random((examples, outputs)) < 0.4
    elif problem is REGRESSION:
        label = generator.normal(size=(examples, outputs))
    return Predictions.from_logits(np.arange(examples), label, generator.normal(size=(examples, outputs)), problem)


@settings(max_examples=60)
@given(
    st.integers(1, 40), st.integers(1, 6), st.sampled_from([*PROBLEMS.values()]), st.integers(1, 6), st.integers(0, 999)
)
def test_totals_of_the_parts_add_up_to_totals_of_the_whole(
    examples: int, outputs: int, problem: Problem, ranks: int, seed: int
) -> None:
    whole = predictions_of(examples, outputs, seed, problem)
    owner = np.random.default_rng(seed).integers(0, ranks, size=examples)
    parts = [Totals.of(whole.at(np.flatnonzero(owner == rank))) for rank in range(ranks)]
    added = Totals(*(sum(getattr(part, name) for part in parts) for name in TOTALS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dist_eval.metrics.predictions._CELLS_IN_A_CHUNK", seed % 30 + 1)
        require_same_totals(added, Totals.of(whole))
    assert added.samples == examples
    assert added.mean_loss == pytest.approx(whole.loss.mean())
    same = whole.label == whole.prediction
    if problem is REGRESSION:
        assert added.errors[:, 0] == pytest.approx(np.abs(whole.label - whole.prediction).sum(axis=0))
        assert added.errors[:, 1] == pytest.approx(((whole.label - whole.prediction) ** 2).sum(axis=0))
    else:
        assert added.accuracy == (same.all(axis=1) if problem is MULTI_LABEL else same).mean()
        assert added.confusion.sum() == examples * (outputs if problem is MULTI_LABEL else 1)


def test_totals_of_nothing_have_the_shape_and_dtype_of_any_others() -> None:
    nothing, something = Totals.of(Predictions.empty(4)), Totals.of(predictions_of(3, 4, 0))
    for name in TOTALS:
        assert getattr(nothing, name).shape == getattr(something, name).shape
        assert getattr(nothing, name).dtype == getattr(something, name).dtype
        assert not getattr(nothing, name).sum()
    assert nothing.accuracy is None and nothing.mean_loss is None


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
    label, guess = np.array([0, 0, 1, 2, 2, 1]), np.array([0, 1, 1, 2, 0, 1])
    true = Totals.of(Predictions.from_logits(np.arange(6), label, 2 * np.eye(3)[guess]))
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


@pytest.mark.parametrize("column", [0, 1])
def test_errors_that_disagree_are_caught(column: int) -> None:
    true = Totals.of(predictions_of(5, 2, 0, REGRESSION))
    errors = true.errors.copy()
    errors[0, column] += 1e-6
    with pytest.raises(ExactnessError, match="The errors do not agree"):
        require_same_totals(true, Totals(true.counts, true.confusion, true.loss, errors))
