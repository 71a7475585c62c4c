"""Tables of text: columns are aligned, and lines end with their last character."""

from __future__ import annotations

import doctest

import pytest

from dist_eval import tables
from dist_eval.tables import markdown_table, text_table

ROWS = [["run", "n", ""], ["a long name", "7", ""], ["b", "123456", "last"]]


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    assert text_table(ROWS) == ["run          n", "a long name  7", "b            123456  last"]


def test_what_would_control_a_terminal_is_shown() -> None:
    name = "spam\x1b[2J\nham"
    assert text_table([[name, "7"], ["b", "8"]]) == ["spam\\x1b[2J ham  7", "b                8"]
    assert markdown_table([["class"], [name]])[-1] == "| spam\\x1b[2J ham |"


def test_a_column_of_a_fixed_width_overflows() -> None:
    assert text_table(ROWS, ["<", ">4", "<"]) == ["run             n", "a long name     7", "b            123456  last"]


def test_markdown_has_the_same_rows() -> None:
    lines = ["| run | n |  |", "| --- | ---: | --- |", "| a long name | 7 |  |", "| b | 123456 | last |"]
    assert markdown_table(ROWS, ["<", ">4", "<"]) == lines
    assert markdown_table(ROWS)[1] == "| --- | --- | --- |"


def test_a_table_without_rows_has_no_lines() -> None:
    assert text_table([]) == text_table([], ["<", ">8"]) == []


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        text_table([["a", "b"], ["c"]])


def test_its_examples_hold() -> None:
    assert doctest.testmod(tables).failed == 0
