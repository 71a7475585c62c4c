"""Columns that are filled chunk by chunk, of any names and shapes, and narrowed on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval.data.collector import Collector, narrowed, row_bytes, rows_in

quickly = settings(max_examples=100)


def table(index: list[int]) -> dict[str, np.ndarray]:
    """Columns whose other values follow from the first one."""
    rows = np.asarray(index, dtype=np.int64)
    return {
        "index": rows,
        "score": np.sqrt(np.abs(rows)),
        "is_even": rows % 2 == 0,
        "pairs": np.stack([rows, -rows], axis=1).astype(np.float32),
    }


def assert_equal_tables(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert list(first) == list(second)
    for name, column in first.items():
        assert column.dtype == second[name].dtype
        np.testing.assert_array_equal(column, second[name], err_msg=name)


positions = st.lists(st.integers(-(2**40), 2**40), max_size=8)


@quickly
@given(st.lists(positions, min_size=1, max_size=6))
def test_a_collector_holds_what_was_added_and_sorts_it(parts: list[list[int]]) -> None:
    collector = Collector(sum(map(len, parts)), table([]))
    for part in parts:
        collector.add(table(part))
    everything = [position for part in parts for position in part]
    assert_equal_tables(collector.columns(), table(everything))
    assert_equal_tables(collector.sorted_by("index"), table(sorted(everything)))


def test_a_collector_is_valid_before_it_is_full_and_rejects_more_than_expected() -> None:
    collector = Collector(3, table([]))
    collector.add(table([4, 2]))
    assert_equal_tables(collector.columns(), table([4, 2]))
    with pytest.raises(ValueError, match="4 rows received, 3 expected"):
        collector.add(table([0, 1]))
    collector.add(table([0]))
    with pytest.raises(ValueError, match="3 expected"):
        collector.add(table([1]))
    assert collector.columns()["index"].tolist() == [4, 2, 0]


@quickly
@given(positions)
def test_narrowed_rows_are_restored_for_any_positions(index: list[int]) -> None:
    rows = table(index)
    collector = Collector(len(index), rows)
    for start in range(0, len(index), 3):
        collector.add(narrowed(rows, start, start + 3))
    assert_equal_tables(collector.columns(), rows)


def test_on_a_journey_integers_take_no_more_bytes_than_they_need() -> None:
    rows = {**table([0, 70_000, 5]), "label": np.array([0, 1, 2])}
    assert {name: column.dtype for name, column in narrowed(rows, 0, 3).items()} == {
        "index": np.uint32,
        "score": np.float64,
        "is_even": np.bool_,
        "pairs": np.float32,
        "label": np.uint8,
    }
    assert rows_in(narrowed(rows, 1, 9)) == 2


def test_the_size_of_a_row_counts_all_of_its_values() -> None:
    assert row_bytes(table([])) == row_bytes(table([1, 2])) == 8 + 8 + 1 + 2 * 4
