"""References in a column: texts, numbers, lists of them, and records as in SQuAD."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dist_eval.data.prompted_rows import references_in
from dist_eval.data.readers import RowSource
from dist_eval.errors import DataError


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["Paris", ""]), [["Paris"], [""]]),
        (pa.array([3, 7]), [["3"], ["7"]]),
        (pa.array([["a", "b"], ["c"]]), [["a", "b"], ["c"]]),
        (pa.array([{"text": ["a", "b"], "answer_start": [1, 2]}]), [["a", "b"]]),
    ],
)
def test_each_row_has_its_references(column: pa.Array, expected: list[list[str]]) -> None:
    assert references_in(RowSource("here", iter([])), "answers", column, 0) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", None], "here, row 8 (counted from 0): the reference in column 'answers' is missing."),
        ([["a"], []], "row 8"),
        ([["a", None]], "row 7"),
        ([18.0, 1e6], "here: column 'answers' holds double, which can be written in several ways (18 or"),
        ([[0.5], [1e6]], "holds list<item: double>, which can be written in several ways"),
        ([{"start": 3}], "column 'answers' holds struct<start: int64>; references must be"),
    ],
)
def test_a_row_without_a_reference_is_named(values: list[Any], message: str) -> None:
    with pytest.raises(DataError) as error:
        references_in(RowSource("here", iter([])), "answers", pa.array(values), 7)
    assert message in str(error.value)
