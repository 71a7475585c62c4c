"""How long the rest of a run takes, from how much work was left at what time. Does no I/O.

The work is counted in tokens, including padding: batches are sent longest first, so examples become cheaper all the
time, while a token costs about the same. The speed is that of the second half of the time so far: the first one has
the first passage of the pipeline and the growth of the windows in it. After a while only the last minutes count, so
that a swarm that becomes slower is soon noticed.
"""

from __future__ import annotations

from collections import deque

_LONGEST_MEMORY, _SHARE_REMEMBERED = 600.0, 0.5
_SECONDS_UP_TO, _MINUTES_WITH_SECONDS_UP_TO, _MINUTES_UP_TO, _HOURS_UP_TO = 100, 600, 6000, 48 * 3600


class TimeLeft:
    """Estimates the time until no work is left."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._began = 0.0

    def update(self, left: int, now: float) -> None:
        """Records how much work is left; more than before begins anew."""
        if not self._seen or left > self._seen[-1][1]:
            self._seen, self._began = deque([(now, left)]), now
        elif left < self._seen[-1][1]:
            self._seen.append((now, left))
        since = now - min(_LONGEST_MEMORY, _SHARE_REMEMBERED * (now - self._began))
        # the first passage is over with the first step
        while len(self._seen) > 2 and (self._seen[0][0] == self._began or self._seen[1][0] <= since):
            self._seen.popleft()

    def seconds(self, now: float) -> float | None:
        """Returns the estimate in seconds, None as long as nothing is finished."""
        if len(self._seen) < 2:
            return None
        (began, left_then), (last, left) = self._seen[0], self._seen[-1]
        steps = len(self._seen) - 1
        elapsed = max(last - began, (now - began) * steps / (steps + 1))  # the second if the next step is overdue
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
