"""Columns of Python values: the type follows from all of them, and integers stay what they are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.data.python_columns import MixedValuesError, PythonColumn


def column_of(*pieces: list[Any]) -> pa.ChunkedArray:
    column = PythonColumn()
    for piece in pieces:
        column.add(piece)
    return pa.chunked_array([column.array(piece) for piece in pieces])


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([[1], [0.5], [None, 2]], pa.array([1.0, 0.5, None, 2.0])),
        ([[None], ["a"]], pa.array([None, "a"])),
        ([[None], [None]], pa.nulls(2)),
        ([[[]], [["a"]], [None]], pa.array([[], ["a"], None])),
        ([[[1]], [[0.5]]], pa.array([[1.0], [0.5]])),
        ([[True], [None]], pa.array([True, None])),
        ([["2020-01-31", None]], pa.array(["2020-01-31", None])),
        ([[2**53], [0.5]], pa.array([2.0**53, 0.5])),
        ([[1], [2**64 - 1]], pa.array([1, 2**64 - 1], pa.uint64())),
        ([[-(2**63)], [2**63 - 1]], pa.array([-(2**63), 2**63 - 1])),
        ([[-1], [2**63]], pa.array(["-1", str(2**63)])),
        ([[1], [10**30, None]], pa.array(["1", str(10**30), None])),
        ([[2**53 + 1], [0.5, 3.0, None]], pa.array([str(2**53 + 1), "0.5", "3", None])),
    ],
)
def test_a_column_has_the_type_of_all_its_values(pieces: list[list[Any]], expected: pa.Array) -> None:
    found = column_of(*pieces)
    assert found.type == expected.type
    assert found.to_pylist() == expected.to_pylist()


@given(st.lists(st.lists(st.integers() | st.floats(allow_nan=False, allow_infinity=False), max_size=4), max_size=4))
def test_different_integers_stay_different(pieces: list[list[Any]]) -> None:
    numbers = [number for piece in pieces for number in piece]
    found = column_of([], *pieces).to_pylist()
    of_integers = [read for read, number in zip(found, numbers, strict=True) if isinstance(number, int)]
    assert list(map(int, of_integers)) == [number for number in numbers if isinstance(number, int)]
    assert [float(number) for number in found] == [float(number) for number in numbers]


@pytest.mark.parametrize(
    "values", [[1, "a"], ["a", 1], [True, 1], [1, True], [["a"], "a"], [{"a": 1}, 1], [0.5, "a"], [2**70, "a"]]
)
def test_values_that_do_not_go_together_are_named(values: list[Any]) -> None:
    with pytest.raises(MixedValuesError) as caught:
        column_of([values[0], *values])
    assert caught.value.position == 2
    with pytest.raises(MixedValuesError) as caught:
        column_of([values[0]], values)
    assert caught.value.position == (1 if values[0] != 2**70 else caught.value.position)


def test_nan_is_a_missing_value_where_it_is_said_so() -> None:
    column = PythonColumn(nan_is_null=True)
    column.add([2**60, float("nan")])
    assert column.array([2**60, float("nan")]).to_pylist() == [2**60, None]
