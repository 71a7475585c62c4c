"""The most confident mistakes of a classifier."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval.analysis.mistakes import MOST, confident_mistakes, worst_mistakes
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION

NAMES = ["a", "b", "c"]


@settings(max_examples=60)
@given(st.integers(0, 80), st.integers(0, 1000), st.integers(1, 30))
def test_they_are_the_most_confident_mistakes_in_order(examples: int, seed: int, cells: int) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.integers(-2, 3, size=(examples, 3)).astype(np.float64)  # often equally sure
    predictions = Predictions.from_logits(np.arange(examples) * 3, generator.integers(3, size=examples), logits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dist_eval.metrics.predictions._CELLS_IN_A_CHUNK", cells)
        found = [mistake.to_json() for mistake in confident_mistakes(predictions, NAMES) or []]
        total, everything = worst_mistakes(predictions.chunks(), examples)
    expected = []
    for row in range(examples):
        label, guess = int(predictions.label[row]), int(predictions.prediction[row])
        if label != guess:
            probability = float(predictions.probabilities[row, guess])
            expected.append(
                {"index": 3 * row, "label": NAMES[label], "prediction": NAMES[guess]} | {"probability": probability}
            )
    expected.sort(key=lambda one: (-one["probability"], one["index"]))
    assert found == expected[:MOST]
    assert total == len(expected)
    assert [one.index for one in everything] == [one["index"] for one in expected]


@settings(max_examples=60)
@given(st.integers(0, 80), st.integers(0, 1000), st.integers(1, 30), st.integers(0, 5), st.integers(0, 10))
def test_requested_pairs_are_included_even_if_other_mistakes_are_worse(
    examples: int, seed: int, cells: int, of_each: int, others: int
) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.integers(-2, 3, size=(examples, 3)).astype(np.float64)
    predictions = Predictions.from_logits(np.arange(examples), generator.integers(3, size=examples), logits)
    pairs, most = [(0, 1), (2, 0)], 2 * of_each + others
    everything = worst_mistakes([predictions], examples)[1]
    wanted = {
        one.index
        for pair in pairs
        for one in [one for one in everything if (one.label, one.prediction) == pair][:of_each]
    }
    rest = [one.index for one in everything if one.index not in wanted][: most - len(wanted)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dist_eval.metrics.predictions._CELLS_IN_A_CHUNK", cells)
        total, found = worst_mistakes(predictions.chunks(), most, pairs, of_each)
    assert total == len(everything)
    assert [one.index for one in found] == [one.index for one in everything if one.index in {*wanted, *rest}]


def test_in_a_multi_label_problem_the_most_confident_wrong_decision_counts() -> None:
    label = np.array([[True, False, False], [True, True, False], [False, False, True]])
    logits = np.array([[-3.0, 1.0, -5.0], [2.0, 2.0, -2.0], [0.5, -1.0, 1.0]])
    predictions = Predictions.from_logits(np.arange(3), label, logits, MULTI_LABEL)
    first, second = confident_mistakes(predictions, NAMES) or []
    assert (first.index, first.label, first.prediction) == (0, ["a"], ["b"])
    assert first.probability == 1 - predictions.probabilities[0, 0]
    assert (second.index, second.label, second.prediction) == (2, ["c"], ["a", "c"])
    assert second.probability == predictions.probabilities[2, 0]


def test_a_regression_has_none_but_examples_with_the_largest_loss() -> None:
    outputs = np.array([[1.0], [-3.0], [0.5], [3.0]])
    predictions = Predictions.from_logits(np.arange(4) + 10, np.zeros((4, 1)), outputs, REGRESSION)
    assert confident_mistakes(predictions, ["score"]) is None
    total, found = worst_mistakes(predictions.chunks(), 3)
    assert total == 4
    assert [(one.index, one.score) for one in found] == [(11, 9.0), (13, 9.0), (10, 1.0)]
