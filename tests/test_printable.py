"""Text from outside."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.errors import print_error
from dist_eval.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, café, 零, 👩‍👩‍👧, می‌خواهم", "plain, café, 零, 👩‍👩‍👧, می‌خواهم"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("one\r\n\n  two\tthree", "one   two three"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("\ud800\x9b\x7f\x00", "\\ud800\\x9b\\x7f\\x00"),
    ],
)
def test_controls_are_shown_and_letters_are_kept(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(exclude_categories=())), st.integers(0, 50))
def test_any_text_becomes_one_line_that_can_be_written(text: str, limit: int) -> None:
    clean = printable(text, limit)
    assert clean == printable(clean)
    assert len((clean + ".").splitlines()) == 1
    clean.encode()
    assert len(clean) <= 6 * limit + 3


def test_a_long_text_is_cut_first() -> None:
    started = time.process_time()
    assert printable(" \n" * 50_000_000, 3) == "   ..."
    for repeated in (" ", "\n", "\t ", "\x1b"):
        printable(repeated * 200_000 + "x\n")
    assert time.process_time() - started < 10, "the time is not quadratic"


def test_error_messages_are_printable_and_keep_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("one\nfile \x1b]0;owned\x07.csv", "dist-eval swarm")
    assert capsys.readouterr().err == "dist-eval swarm: one\nfile \\x1b]0;owned\\x07.csv\n"
