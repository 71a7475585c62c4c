"""Sparse confusion matrices: exact, and nothing of a size that grows with the square of the classes."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from dist_eval.errors import ExactnessError
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.confusion import confusion_of, most_confused
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.totals import Totals, require_same_totals
from dist_eval.statistics import class_intervals

MANY = 10_000  # a whole matrix of them would have 100 million cells


def predictions_of(label: np.ndarray, prediction: np.ndarray, classes: int) -> Predictions:
    logits = np.zeros((len(label), classes), dtype=np.float32)
    logits[np.arange(len(label)), prediction] = 1.0
    return Predictions.from_logits(np.arange(len(label)), label, logits)


@st.composite
def answers(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    classes = draw(st.integers(1, 40))
    pairs = st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1))
    label, prediction = np.array(draw(st.lists(pairs, min_size=1, max_size=60))).T
    return label, prediction, classes


@given(answers())
@pytest.mark.filterwarnings("ignore:A single label was found")
def test_it_is_scikit_learns(drawn: tuple[np.ndarray, np.ndarray, int]) -> None:
    label, prediction, classes = drawn
    matrix = confusion_of(label, prediction, classes)
    assert matrix.toarray().tolist() == sk.confusion_matrix(label, prediction, labels=range(classes)).tolist()


@given(answers(), st.integers(1, 12))
def test_the_others_are_added_up(drawn: tuple[np.ndarray, np.ndarray, int], most: int) -> None:
    label, prediction, classes = drawn
    matrix = confusion_of(label, prediction, classes)
    kept, small = most_confused(matrix, most)
    others = np.setdiff1d(np.arange(classes), kept)
    assert len(kept) == (classes if classes <= most + 1 else most)
    whole = matrix.toarray()
    parts = [[kept, others] if len(others) else [kept]] * 2
    expected = [[whole[np.ix_(rows, columns)] for columns in parts[1]] for rows in parts[0]]
    assert small[: len(kept), : len(kept)].tolist() == expected[0][0].tolist()
    if len(others):
        assert small[:-1, -1].tolist() == expected[0][1].sum(axis=1).tolist()
        assert small[-1, :-1].tolist() == expected[1][0].sum(axis=0).tolist()
        assert small[-1, -1] == expected[1][1].sum()
    mistakes = whole.sum(axis=0) + whole.sum(axis=1) - 2 * whole.diagonal()
    assert min(mistakes[kept]) >= max(mistakes[others], default=0)


def test_many_classes_take_no_memory_of_their_square() -> None:
    drawn = np.random.default_rng(0).integers(MANY, size=(2, 30))
    predictions = predictions_of(*drawn, MANY)
    tracemalloc.start()
    try:
        totals = Totals.of(predictions)
        metrics = compute_metrics(predictions, [*map(str, range(MANY))])
        rows = class_intervals(predictions, metrics, {})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 90 << 20
    assert totals.confusion.sum() == 30 and len(rows) == MANY
    require_same_totals(totals, Totals.of(predictions))


def test_counting_many_examples_of_many_classes_takes_no_time_of_their_square() -> None:
    examples, classes = 400_000, 5_000
    label, prediction = np.random.default_rng(0).integers(classes, size=(2, examples))
    probabilities = np.broadcast_to(0.0, (examples, classes))
    predictions = Predictions(np.arange(examples), label, None, np.zeros(examples), None, prediction, probabilities)
    began = time.process_time()
    totals = Totals.of(predictions)
    assert time.process_time() - began < 2  # adding up the matrices of pieces takes over 5 s
    pairs, counts = np.unique(np.stack([label, prediction]), axis=1, return_counts=True)
    cells = totals.confusion.tocoo()
    assert np.array_equal([cells.row, cells.col, cells.data], [*pairs, counts])
    assert totals.counts.tolist() == [examples, (label == prediction).sum()]


def test_a_difference_of_many_classes_is_said_in_few_words() -> None:
    label, prediction = np.random.default_rng(0).integers(MANY, size=(2, 300))
    true, other = (Totals.of(predictions_of(label, given, MANY)) for given in (prediction, prediction[::-1]))
    with pytest.raises(ExactnessError, match="The confusion do not agree: all_reduce gives") as caught:
        require_same_totals(true, other)
    assert len(str(caught.value)) < 10_000
