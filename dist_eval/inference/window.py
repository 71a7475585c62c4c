"""How many batches a rank keeps under way: a number that finds itself. Knows neither the model nor the network.

Too few leave the servers idle while answers travel; too many only stand in queues, use memory and come close to the
servers' time limits. What tells them apart is time: with nothing in the way a batch takes some least time, and what it
takes longer, it waited in a queue. So the number that wait is `size * (1 - least / usual)`; the window grows while few
of its batches wait and shrinks when many do. The method is that of TCP Vegas (Brakmo and Peterson, 1995, "TCP Vegas:
end to end congestion avoidance on a global Internet"). While batches wait, the servers are never idle, and more of
them would not raise the throughput.
"""

from __future__ import annotations

import statistics
from collections import deque

FIRST_SIZE, LARGEST_SIZE = 4, 64
_FEW_WAIT, _MANY_WAIT = 2.0, 6.0
_LEAST_OF = 200
"""Batches among which the least time is looked for; older ones tell of another network."""
_SHARE_OF_TIMEOUT = 0.25
_COPIES = 6
"""Tensors of a batch's size that are in memory for each batch under way: activations, packed, in and out."""
_SHARE_OF_MEMORY = 0.25


class Window:
    """The number of batches that may be under way at a time.

    Args:
        fixed: the size, if it is not to change.
        largest: the most that it may grow to.
        timeout: seconds after which a server's answer is given up; batches should take a quarter of that at most.
    """

    def __init__(self, fixed: int | None = None, *, largest: int = LARGEST_SIZE, timeout: float = 60.0) -> None:
        self.largest = fixed or largest
        self.size = fixed or min(FIRST_SIZE, largest)
        self._fixed, self._limit = fixed is not None, timeout * _SHARE_OF_TIMEOUT
        self._recent: deque[float] = deque(maxlen=_LEAST_OF)
        self._since_change, self._retries, self._starting = 0, 0, True

    def finished(self, seconds: float, retries: int) -> None:
        """Takes note of a batch that came back, and sets the size.

        Args:
            seconds: time from sending the batch to its answer.
            retries: requests of this rank that had to be repeated so far, in all.
        """
        self._recent.append(seconds)
        self._since_change += 1
        failed, self._retries = retries > self._retries, retries
        if self._fixed:
            return
        if failed:
            self._shrink_to(self.size // 2)
            return
        # a change shows only in the batches sent after it; at the start, one more with every answer
        if self._since_change < (1 if self._starting else self.size):
            return
        usual = statistics.median(list(self._recent)[-max(3, self.size) :])
        waiting = self.size * (1.0 - min(self._recent) / usual) if usual > 0 else 0.0
        if usual > self._limit:
            self._shrink_to(int(self.size * self._limit / usual))
        elif waiting > _MANY_WAIT:
            self._shrink_to(self.size - 1)
        elif waiting < _FEW_WAIT and self.size < self.largest:
            self.size, self._since_change = self.size + 1, 0
        else:
            self._starting = False

    def _shrink_to(self, size: int) -> None:
        self.size, self._since_change, self._starting = max(1, size), 0, False


def largest_window(tokens: int, hidden_size: int, available_bytes: int) -> int:
    """Returns how many batches fit into a share of the memory.

    Args:
        tokens: of a batch, counting padding and prompts.
        hidden_size: width of the activations, which are float32.
        available_bytes: memory that this rank may count on.

    Returns:
        At least 1, at most `LARGEST_SIZE`.
    """
    batch = tokens * hidden_size * 4 * _COPIES
    return int(min(LARGEST_SIZE, max(1, available_bytes * _SHARE_OF_MEMORY // batch)))
