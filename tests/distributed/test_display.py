"""The display: a bar on a terminal, lines elsewhere, both with the time left that they are told."""

from __future__ import annotations

import io
import re
import time

import pytest

from dist_eval.distributed import display


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
