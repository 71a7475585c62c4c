"""The leader's display of the progress of a run or a tuning: a bar on a terminal, otherwise a line per minute."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, TextIO

from dist_eval.printable import printable
from dist_eval.tables import format_count

BAR = "DIST_EVAL_BAR"
"""Environment variable: set if a stream that is not a terminal can still show a bar, as in a notebook."""

_WIDTH = 80  # of terminals that do not report a width
_LINE_SECONDS, _FIRST_LINE_SECONDS = 60.0, 2.0
_LONGEST_MEMORY, _SHARE_REMEMBERED = 600.0, 0.5
_SECONDS_UP_TO, _MINUTES_WITH_SECONDS_UP_TO, _MINUTES_UP_TO, _HOURS_UP_TO = 100, 600, 6000, 48 * 3600


class TimeLeft:
    """Estimates the remaining time from recent throughput.

    Work is counted in tokens, including padding: batches are sent longest first, so examples become cheaper, while the
    cost of a token hardly changes. The throughput is that of the second half of the elapsed time, because the first
    half includes filling the pipeline and growing the windows. Later, only the last minutes count, so the estimate soon
    reflects a slower swarm.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._began = 0.0

    def update(self, left: int, now: float) -> None:
        """Records the remaining work; if it has grown, the estimate starts over."""
        if not self._seen or left > self._seen[-1][1]:
            self._seen, self._began = deque([(now, left)]), now
        elif left < self._seen[-1][1]:
            self._seen.append((now, left))
        since = now - min(_LONGEST_MEMORY, _SHARE_REMEMBERED * (now - self._began))
        # filling the pipeline ends with the first step
        while len(self._seen) > 2 and (self._seen[0][0] == self._began or self._seen[1][0] <= since):
            self._seen.popleft()

    def seconds(self, now: float) -> float | None:
        """Returns the estimate in seconds, None until something is finished."""
        if len(self._seen) < 2:
            return None
        (began, left_then), (last, left) = self._seen[0], self._seen[-1]
        steps = len(self._seen) - 1
        elapsed = max(
            last - began, (now - began) * steps / (steps + 1)
        )  # the second value applies if the next step is overdue
        return max(0.0, elapsed * left / (left_then - left) - min(now - last, elapsed / steps))


def in_words(seconds: float) -> str:
    """Formats a duration with two or three digits, such as "48 s", "3 min 20 s", "45 min" or "5 h 10 min"."""
    whole = round(seconds)
    if whole < _SECONDS_UP_TO:
        return f"{whole} s"
    if whole < _MINUTES_WITH_SECONDS_UP_TO:
        return _two_units(whole, "min", "s")
    minutes = round(seconds / 60)
    if whole < _MINUTES_UP_TO:
        return f"{minutes} min"
    return _two_units(minutes, "h", "min") if whole < _HOURS_UP_TO else f"{seconds / 86400:.1f} days"


def _two_units(count: int, large: str, small: str) -> str:
    whole, rest = divmod(count, 60)
    return f"{whole} {large}" + (f" {rest} {small}" if rest else "")


def _has_width(stream: TextIO) -> bool:
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError):  # not a terminal, such as a notebook, which has a width for tqdm
        return True


class _Bar:
    def __init__(self, stream: TextIO, total: int, what: str, unit: str) -> None:
        from tqdm import tqdm

        self._stream, self._in_digits = stream, tqdm.format_interval
        width: dict[str, Any] = {"dynamic_ncols": True} if _has_width(stream) else {"ncols": _WIDTH}
        self._bar = tqdm(total=total, unit=f" {unit}s", file=stream, desc=what, **width)

    def show(self, done: int, before: int, seconds_left: float | None, details: str = "") -> None:
        if before != self._bar.initial:
            self._bar.initial = self._bar.n = before
        left = "?" if seconds_left is None else self._in_digits(seconds_left)
        # tqdm's own estimate counts examples, which take longer at first
        more = f", {details}" if details else ""
        self._bar.bar_format = f"{{l_bar}}{{bar}}| {{n_fmt}}/{{total_fmt}} [{{elapsed}}<{left}, {{rate_fmt}}{more}]"
        self._bar.update(done - self._bar.n)

    def note(self, text: str) -> None:
        self._bar.write(printable(text), file=self._stream)

    def close(self) -> None:
        self._bar.close()


class _Lines:
    def __init__(self, stream: TextIO, total: int, what: str, unit: str) -> None:
        self._stream, self._total, self._what, self._unit = stream, total, what, unit
        self._start = time.monotonic()
        self._next, self._shown, self._line = self._start + _FIRST_LINE_SECONDS, -1, ""

    def show(self, done: int, before: int, seconds_left: float | None, details: str = "") -> None:
        if done == self._shown:
            return
        now = time.monotonic()
        finished = done >= self._total
        rate = (done - before) / max(now - self._start, 1e-9)
        left = "" if finished or seconds_left is None else f", about {in_words(seconds_left)} left"
        count, speed = format_count(self._total, self._unit), f"{rate:.0f}" if rate >= 1 else f"{rate:.2f}"
        speed = f", {speed}/s" if done > before else ""
        more = f", {details}" if details else ""
        self._line = f"{time.strftime('%H:%M:%S')} {self._what}: {done} of {count}{speed}{left}{more}"
        if now >= self._next or finished:
            self._next, self._shown = now + _LINE_SECONDS, done
            self.close()

    def note(self, text: str) -> None:
        print(printable(text), file=self._stream, flush=True)

    def close(self) -> None:
        if self._line:
            print(self._line, file=self._stream, flush=True)
        self._line = ""


Display = _Bar | _Lines  # shows progress and notices


def display_on(stream: TextIO, total: int, what: str = "evaluating", unit: str = "example") -> Display:
    """Returns the display of a run for a stream; `what` is the activity, `unit` what it counts, in the singular."""
    return (_Bar if stream.isatty() or BAR in os.environ else _Lines)(stream, total, what, unit)
