"""The record of predictions, and the proof that it holds every example exactly once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dist_eval.data.answers import logits_columns
from dist_eval.errors import CoverageError, ExactnessError
from dist_eval.metrics.predictions import Coverage, Predictions, prove_coverage
from dist_eval.petals.base_model.problem_types import cross_entropy

quickly = settings(max_examples=100)


@st.composite
def logits_and_labels(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    rows, classes = draw(st.integers(1, 20)), draw(st.integers(1, 12))
    values = st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 3e38, -3e38])
    logits = draw(hnp.arrays(np.float32, (rows, classes), elements=values))
    return logits, draw(hnp.arrays(np.int64, rows, elements=st.integers(0, classes - 1)))


@st.composite
def records(draw: st.DrawFn) -> Predictions:
    logits, labels = draw(logits_and_labels())
    index = draw(st.permutations(range(len(labels))))
    return Predictions.from_logits(np.asarray(index), labels, logits)


def record(index: list[int], classes: int = 3) -> Predictions:
    rows = np.asarray(index, dtype=np.int64)
    logits = np.random.default_rng(0).normal(size=(len(rows), classes))
    return Predictions.from_logits(rows, rows % classes, logits)


def assert_equal_records(first: Predictions, second: Predictions) -> None:
    for name in ("index", "label", "logits", "loss"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


@quickly
@given(logits_and_labels())
def test_the_loss_is_torchs_cross_entropy_in_float64(batch: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = batch
    expected = torch.nn.CrossEntropyLoss(reduction="none")(torch.from_numpy(logits).double(), torch.from_numpy(labels))
    loss = cross_entropy(logits, labels)
    assert loss.dtype == np.float64
    np.testing.assert_allclose(loss, expected.numpy(), rtol=1e-12, atol=1e-12)


@quickly
@given(logits_and_labels())
def test_probabilities_are_torchs_softmax_in_float64(batch: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = batch
    predictions = Predictions.from_logits(np.arange(len(labels)), labels, logits)
    expected = torch.from_numpy(logits).double().softmax(dim=1).numpy()
    np.testing.assert_allclose(predictions.probabilities, expected, rtol=1e-12, atol=1e-15)


@quickly
@given(records())
def test_the_prediction_is_the_first_of_the_largest_logits(predictions: Predictions) -> None:
    expected = [row.index(max(row)) for row in predictions.logits.tolist()]
    assert predictions.prediction.tolist() == expected


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_logits_of_any_dtype_give_a_loss_in_float64(dtype: type) -> None:
    logits = np.array([[0.5, 0.25], [-1.0, 4.0]], dtype=dtype)
    predictions = Predictions.from_logits(np.array([4, 2], dtype=np.int32), np.array([0, 1], dtype=np.int8), logits)
    assert predictions.loss.tolist() == cross_entropy(logits.astype(np.float32), np.array([0, 1])).tolist()
    assert [getattr(predictions, n).dtype for n in ("index", "label", "logits", "loss")] == [
        np.int64,
        np.int64,
        np.float32,
        np.float64,
    ]


def test_no_predictions_join_with_some() -> None:
    some, none = record([2, 0, 1]), Predictions.empty(3)
    assert len(none) == 0
    assert none.num_labels == 3
    assert none.prediction.tolist() == []
    assert_equal_records(Predictions.concatenate([none, some, none]), some)


@quickly
@given(st.lists(st.lists(st.integers(0, 1000), max_size=8), min_size=1, max_size=6))
def test_concatenation_keeps_the_order_of_the_parts(parts: list[list[int]]) -> None:
    whole = record([row for part in parts for row in part])
    starts = np.cumsum([0, *map(len, parts)])
    cut = [whole.at(slice(begin, end)) for begin, end in itertools.pairwise(starts)]
    assert_equal_records(Predictions.concatenate(cut), whole)


def test_predictions_with_different_columns_do_not_join() -> None:
    parts = [record([0, 1]), record([2]).in_groups(np.array([3]))]
    for order in (parts, parts[::-1]):
        with pytest.raises(ValueError, match="only predictions with the same columns can be joined"):
            Predictions.concatenate(order)


@quickly
@given(records())
def test_predictions_are_taken_as_whole_rows(predictions: Predictions) -> None:
    ordered = predictions.at(np.argsort(predictions.index))
    assert ordered.index.tolist() == list(range(len(predictions)))
    for position, row in enumerate(predictions.index):
        assert ordered.label[row] == predictions.label[position]
        assert ordered.loss[row] == predictions.loss[position]
        assert ordered.logits[row].tolist() == predictions.logits[position].tolist()


@quickly
@given(records(), st.integers(1, 40))
def test_pieces_are_all_rows_in_order_and_of_bounded_size(predictions: Predictions, cells: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dist_eval.metrics.predictions._CELLS_IN_A_CHUNK", cells)
        pieces = list(predictions.chunks())
        assert_equal_records(Predictions.concatenate(pieces), predictions)
        assert all(piece.logits.size <= max(cells, predictions.num_labels) for piece in pieces)
        assert all(np.shares_memory(piece.logits, predictions.logits) for piece in pieces)
        columns = list(predictions.probabilities_of(range(predictions.num_labels)))
    np.testing.assert_array_equal(np.stack(columns, axis=1), predictions.probabilities)


@quickly
@given(logits_and_labels())
def test_answers_of_a_head_make_the_same_predictions_as_its_logits(batch: tuple[np.ndarray, np.ndarray]) -> None:
    logits, labels = batch
    answers = np.empty(len(labels), dtype=logits_columns(logits.shape[1]))
    answers["logits"] = logits
    index = np.arange(len(labels))
    found = Predictions.from_answers(index, labels.astype(np.int16), answers)
    assert_equal_records(found, Predictions.from_logits(index, labels, logits))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("index", np.arange(3, dtype=np.int32)),
        ("label", np.zeros(2, dtype=np.int64)),
        ("logits", np.zeros((3, 2), dtype=np.float64)),
        ("logits", np.zeros(3, dtype=np.float32)),
        ("loss", np.zeros(3, dtype=np.float32)),
        ("loss", np.zeros((3, 1), dtype=np.float64)),
    ],
)
def test_a_column_of_another_shape_or_dtype_is_refused(name: str, column: np.ndarray) -> None:
    columns = {
        "index": np.arange(3, dtype=np.int64),
        "label": np.zeros(3, dtype=np.int64),
        "logits": np.zeros((3, 2), dtype=np.float32),
        "loss": np.zeros(3, dtype=np.float64),
    }
    with pytest.raises(ValueError, match=f"^{name} must be"):
        Predictions(**{**columns, name: column})


@quickly
@given(st.permutations(range(12)))
def test_every_row_once_in_any_order_is_exact(rows: list[int]) -> None:
    coverage = prove_coverage(np.asarray(rows, dtype=np.int64), 12)
    assert coverage == Coverage(expected=12, seen=12, duplicates=0, missing=0, failed=0)
    assert coverage.exact


def test_nothing_covers_an_empty_dataset() -> None:
    assert prove_coverage(np.empty(0, dtype=np.int64), 0).exact


@st.composite
def corruptions(draw: st.DrawFn) -> tuple[np.ndarray, int, list[int], list[int], list[int]]:
    """Rows in some order, after some were dropped, repeated, or added from outside the dataset."""
    n = draw(st.integers(1, 30))
    dropped = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=n))
    kept = [row for row in range(n) if row not in dropped]
    repeated = draw(st.lists(st.sampled_from(kept), max_size=5)) if kept else []
    outside = draw(st.lists(st.integers(-(2**40), -1) | st.integers(n, 2**40), max_size=5))
    rows = draw(st.permutations([*kept, *repeated, *outside]))
    return np.asarray(rows, dtype=np.int64), n, dropped, repeated, outside


@quickly
@given(corruptions().filter(lambda corruption: any(corruption[2:])))
def test_any_corruption_is_found_counted_and_named(
    corruption: tuple[np.ndarray, int, list[int], list[int], list[int]],
) -> None:
    rows, expected, dropped, repeated, outside = corruption

    with pytest.raises(CoverageError, match=f"do not cover the dataset's {expected} rows?") as caught:
        prove_coverage(rows, expected)

    coverage = caught.value.coverage
    assert isinstance(coverage, Coverage)
    assert coverage == Coverage(
        expected=expected, seen=expected - len(dropped), duplicates=len(repeated), missing=len(dropped)
    )
    assert coverage.exact == (not dropped and not repeated)
    message = str(caught.value)
    for what, named in (("repeated", set(repeated)), ("missing", dropped), ("outside the dataset", outside)):
        assert (f"{len(named)} {what} (" in message) == bool(named)


def test_a_lack_of_coverage_is_a_lack_of_exactness_with_its_counts() -> None:
    with pytest.raises(ExactnessError) as caught:
        prove_coverage(np.asarray([0, 1, 1, 3]), 6)
    assert isinstance(caught.value, CoverageError)
    counts = {"expected": 6, "seen": 3, "duplicates": 1, "missing": 3, "failed": 0}
    assert caught.value.coverage == Coverage(**counts)


def test_the_first_rows_concerned_are_named() -> None:
    rows = np.asarray([0, 1, 1, 3, 9, *range(6, 9)])
    with pytest.raises(CoverageError) as caught:
        prove_coverage(rows, 9)
    assert "1 repeated (1); 3 missing (2, 4, 5); 1 outside the dataset (9)." in str(caught.value)


@quickly
@given(st.sets(st.integers(0, 50), min_size=1).map(sorted), st.data())
def test_of_some_rows_of_a_dataset_these_are_proven(rows: list[int], data: st.DataObject) -> None:
    failed = data.draw(st.lists(st.sampled_from(rows), unique=True))
    index = data.draw(st.permutations([row for row in rows if row not in failed]))
    given_rows, selected = np.asarray(index, dtype=np.int64), np.asarray(rows)
    coverage = prove_coverage(given_rows, len(rows), failed, selected)
    assert (coverage.seen, coverage.missing, coverage.failed) == (len(index), len(failed), len(failed))
    other = data.draw(st.integers(-2, 60).filter(lambda row: row not in rows))
    with pytest.raises(CoverageError, match=rf"1 outside the dataset \({other}\)"):
        prove_coverage(np.append(given_rows, other), len(rows), failed, selected)


def test_of_some_rows_those_of_the_dataset_are_named() -> None:
    with pytest.raises(CoverageError, match=r"3 rows: 1 repeated \(30\); 1 missing \(20\)\."):
        prove_coverage(np.asarray([30, 10, 30]), 3, rows=np.asarray([10, 20, 30]))


def test_many_missing_rows_are_not_all_listed() -> None:
    with pytest.raises(CoverageError, match=r"1000 missing \(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.\)"):
        prove_coverage(np.empty(0, dtype=np.int64), 1000)
