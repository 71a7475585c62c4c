"""Timelines: how many calls were in flight at what time, in a bounded number of bins.

Bins are aligned with the clock and double their width whenever there would be too many of them, so that timelines of
several ranks and servers can be compared. Clocks of several hosts may differ.
"""

from __future__ import annotations

import math
import threading
import time

from dist_eval.results.work import TimelineBins

_MOST_BINS, _FIRST_WIDTH = 128, 2.0**-4
_EPOCH = time.time() - time.monotonic()


class Timeline:
    """Calls over time. Thread-safe.

    Args:
        most_bins: how many bins there may be, at least 2.
    """

    def __init__(self, most_bins: int = _MOST_BINS) -> None:
        self._most, self._width = most_bins, _FIRST_WIDTH
        self._bins: dict[int, list[float]] = {}
        self._lock = threading.Lock()

    def add(self, began: float, ended: float, *, done: int = 1, failed: int = 0) -> None:
        """Records a call that has ended.

        Args:
            began: when it began, in the seconds of `time.monotonic()`.
            ended: when it ended, likewise.
            done: how many items it has finished, such as examples or requests.
            failed: how many items have failed.
        """
        began, ended = began + _EPOCH, max(began, ended) + _EPOCH
        with self._lock:
            first = min([math.floor(began / self._width), *self._bins])
            last = max([math.floor(ended / self._width), *self._bins])
            while last - first >= self._most:
                self._widen()
                first, last = first // 2, last // 2
            for number in range(math.floor(began / self._width), math.floor(ended / self._width) + 1):
                start = number * self._width
                overlap = min(ended, start + self._width) - max(began, start)
                self._bins.setdefault(number, [0.0, 0, 0])[0] += overlap
            cell = self._bins[math.floor(ended / self._width)]
            cell[1] += done
            cell[2] += failed

    def bins(self) -> TimelineBins | None:
        """Returns the timeline, None if no call was recorded."""
        with self._lock:
            if not self._bins:
                return None
            first, last = min(self._bins), max(self._bins)
            cells = [self._bins.get(number, [0.0, 0, 0]) for number in range(first, last + 1)]
            return TimelineBins(
                began=first * self._width,
                bin_seconds=self._width,
                busy=[round(seconds / self._width, 3) for seconds, _, _ in cells],
                done=[int(done) for _, done, _ in cells],
                failed=[int(failed) for _, _, failed in cells],
            )

    def _widen(self) -> None:
        self._width *= 2
        wider: dict[int, list[float]] = {}
        for number, cell in self._bins.items():
            sums = wider.setdefault(number // 2, [0.0, 0, 0])
            for place, value in enumerate(cell):
                sums[place] += value
        self._bins = wider
