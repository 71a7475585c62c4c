"""The display: a bar on a terminal, lines elsewhere; the time left is estimated from tokens and the latest speed."""

from __future__ import annotations

import io
import os
import pty
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.distributed import display
from dist_eval.distributed.display import TimeLeft, in_words


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_shows_the_time_left_and_counts_no_examples_of_earlier_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    terminal = Terminal()
    bar = display.display_on(terminal, 100, "tuning", "update")
    bar.show(60, 60, None)
    bar.show(80, 60, 125.0, "epoch 2, loss 0.5")
    bar.close()
    last = terminal.getvalue().split("\r")[-1]
    assert "tuning:  80%" in last
    assert re.search(r"80/100 \[00:00<02:05, .* updates/s, epoch 2, loss 0.5\]", last)


def test_a_terminal_without_a_width_has_a_bar() -> None:
    ours, theirs = pty.openpty()  # 0 rows of 0 columns
    with open(theirs, "w") as terminal:
        bar = display.display_on(terminal, 100)
        bar.show(50, 0, 10.0)
        bar.close()
    assert b"\revaluating:   0%|" in os.read(ours, 10_000)
    os.close(ours)


def test_a_bar_is_shown_where_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(display.BAR, "1")
    stream = io.StringIO()
    bar = display.display_on(stream, 100)
    bar.show(50, 0, 10.0)
    bar.close()
    assert "\revaluating:  50%|" in stream.getvalue()


def test_lines_come_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    lines = display.display_on(stream, 100)
    lines.show(70, 60, 5.0)
    assert stream.getvalue() == "", "too soon"
    later = time.monotonic() + 1000.0
    monkeypatch.setattr(display.time, "monotonic", lambda: later)
    lines.show(80, 60, 725.0)
    lines.show(90, 60, 10.0)
    lines.show(100, 60, 0.0)
    lines.close()
    assert _without_clock(stream) == [
        "evaluating: 80 of 100 examples, 0.02/s, about 12 min left",
        "evaluating: 100 of 100 examples, 0.04/s",
    ]


def test_the_last_line_of_a_run_that_ends_early_says_how_far_it_is() -> None:
    stream = io.StringIO()
    lines = display.display_on(stream, 100)
    lines.show(70, 60, 5.0)
    lines.show(90, 60, None)
    lines.close()
    [last] = _without_clock(stream)
    assert last.startswith("evaluating: 90 of 100 examples, ")


def _without_clock(stream: io.StringIO) -> list[str]:
    """Returns the lines, each of which begins with the time of day."""
    matches = [re.fullmatch(r"\d\d:\d\d:\d\d (.*)", line) for line in stream.getvalue().splitlines()]
    return [match[1] for match in matches if match]


def estimate(work: list[tuple[float, int]], now: float | None = None) -> float | None:
    left = TimeLeft()
    for moment, amount in work:
        left.update(amount, moment)
    return left.seconds(work[-1][0] if now is None else now)


@given(
    seconds=st.floats(0.01, 100),
    tokens=st.integers(1, 5000),
    done=st.integers(2, 300),
    left=st.integers(1, 1000),
    passage=st.floats(0, 100),
)
def test_at_a_steady_speed_it_is_exact_whatever_the_first_passage_took(
    seconds: float, tokens: int, done: int, left: int, passage: float
) -> None:
    first, total = seconds * passage, (done + left) * tokens
    steps = [(first + step * seconds, total - (step + 1) * tokens) for step in range(done)]
    assert estimate([(0.0, total), *steps]) == pytest.approx(left * seconds, rel=1e-6)


def test_before_the_first_batch_nothing_is_known() -> None:
    assert TimeLeft().seconds(0.0) is None
    assert estimate([(0.0, 100), (5.0, 100)]) is None


def test_nothing_is_left_at_the_end() -> None:
    assert estimate([(0.0, 100), (1.0, 50), (2.0, 0)]) == 0.0


def test_work_that_comes_back_begins_anew() -> None:
    assert estimate([(0.0, 1000), (1.0, 0), (2.0, 500)]) is None, "the speed was that of other servers"
    assert estimate([(0.0, 1000), (1.0, 0), (2.0, 500), (3.0, 400)]) == pytest.approx(4.0)


def test_a_swarm_that_became_slower_is_noticed_within_minutes() -> None:
    fast = [(float(second), 10**6 - 100 * second) for second in range(7200)]
    slow = [(7200.0 + second, 280_000 - 10 * second) for second in range(601)]
    assert estimate([*fast, *slow]) == pytest.approx(27_400, rel=0.01)


def test_a_swarm_that_stands_still_has_longer_to_go_and_a_step_under_way_is_counted() -> None:
    steps = [(float(second), 1000 - 10 * second) for second in range(50)]
    at_once, halfway, overdue = (estimate(steps, now) for now in (49.0, 49.5, 149.0))
    assert at_once == pytest.approx(51.0)
    assert halfway == pytest.approx(50.5)
    assert overdue is not None and overdue > 100


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 s"),
        (99.4, "99 s"),
        (99.5, "1 min 40 s"),
        (180, "3 min"),
        (601, "10 min"),
        (5990, "100 min"),
        (6000, "1 h 40 min"),
        (7200, "2 h"),
        (3 * 86400 + 7200, "3.1 days"),
    ],
)
def test_durations_have_two_or_three_digits(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
