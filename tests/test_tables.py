"""Tables of text: columns are aligned, and lines end with their last character."""

from __future__ import annotations

import doctest
import os
import sys
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval import tables
from dist_eval.tables import markdown_table, output_width, text_table

ROWS = [["run", "n", ""], ["a long name", "7", ""], ["b", "123456", "last"]]


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    assert text_table(ROWS) == ["run          n", "a long name  7", "b            123456  last"]


def test_what_would_control_a_terminal_is_shown() -> None:
    name = "spam\x1b[2J\nham"
    assert text_table([[name, "7"], ["b", "8"]]) == ["spam\\x1b[2J ham  7", "b                8"]
    assert markdown_table([["class"], [name]], ["<"])[-1] == "| spam\\x1b[2J ham |"


def test_numbers_end_below_each_other() -> None:
    assert text_table(ROWS, ["<", ">", "<"]) == [
        "run               n",
        "a long name       7",
        "b            123456  last",
    ]


def test_columns_without_room_stand_below() -> None:
    rows = [["run", "accuracy", "loss"], ["runs/a", "0.97 [0.95, 0.98]", "0.07 [0.04, 0.11]"]]
    assert text_table(rows, "<>>", width=30) == [
        "run              accuracy",
        "runs/a  0.97 [0.95, 0.98]",
        "",
        "run                  loss",
        "runs/a  0.07 [0.04, 0.11]",
    ]
    assert text_table([["ab", "n"], ["c", "12"]], "<>", width=1, keys=1) == ["a   n", "b", "c  12"]


NAMES = st.text("ab -/", max_size=50).map(str.strip)
NUMBERS = st.sampled_from(["-", "0.5", "0.9748 [0.9589, 0.9847]"])


@given(data=st.data(), others=st.text("<>", min_size=1, max_size=9), keys=st.integers(1, 3), width=st.integers(80, 120))
def test_no_line_is_too_long_and_nothing_is_lost(data: st.DataObject, others: str, keys: int, width: int) -> None:
    formats = "<" * keys + others
    head = st.tuples(*[NAMES] * len(formats))
    row = st.tuples(*[NAMES if alignment == "<" else NUMBERS for alignment in formats])
    rows = [data.draw(head), *data.draw(st.lists(row, max_size=4))]
    lines = text_table(rows, formats, width=width, keys=keys)
    assert max(map(len, lines)) <= width
    shown, given_, repeated = (
        Counter("".join(cells).replace(" ", ""))
        for cells in (lines, chain(*rows), chain(*(row[:keys] for row in rows)))
    )
    further_tables = max(((shown - given_)[letter] // count for letter, count in repeated.items()), default=0)
    assert shown == given_ + Counter({letter: count * further_tables for letter, count in repeated.items()})
    if max(map(len, text_table(rows, formats))) <= width:
        assert lines == text_table(rows, formats)


def test_the_width_is_that_of_a_terminal_and_else_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert output_width() == 120
    controller, terminal = os.openpty()
    with os.fdopen(controller, "rb"), os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert output_width() == 80


def test_markdown_has_the_same_rows() -> None:
    lines = ["| run | n |  |", "| --- | ---: | --- |", "| a long name | 7 |  |", "| b | 123456 | last |"]
    assert markdown_table(ROWS, ["<", ">", "<"]) == lines


def test_a_cell_of_blanks_keeps_its_row() -> None:
    assert len(text_table([["x", "y"], [" " * 40, "1"]], width=20)) == 2


def test_a_table_without_rows_has_no_lines() -> None:
    assert text_table([]) == text_table([], ["<", ">"]) == []


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        text_table([["a", "b"], ["c"]])


def test_its_examples_hold() -> None:
    assert doctest.testmod(tables).failed == 0
