"""The adaptive number of batches that a rank keeps in flight, and of requests that a server holds.

Too few leave the servers idle while answers travel; too many only wait in queues, use memory and come close to the
servers' timeouts. Latency tells which: the minimum is that of a batch that did not queue, and the excess is queueing.
So the number of queued batches is `size * (1 - minimum / median)`; the window grows while few of its batches queue and
shrinks when many do, as in TCP Vegas (Brakmo and Peterson, 1995, "TCP Vegas: end to end congestion avoidance on a
global Internet"). While batches queue, the servers are never idle, and more batches would not raise the throughput.
"""

from __future__ import annotations

import statistics
from collections import deque

import psutil

from dist_eval.distributed.rank_store import Topology

FIRST_SIZE, LARGEST_SIZE = 16, 64
_QUEUED = (2.0, 6.0)
_MINIMUM_OVER = 200
"""Batches over which the minimum latency is taken; older ones may reflect other network conditions."""
_ALONE_EVERY = 50
"""Batches, for each one in flight, between two that are sent alone: letting the others return first costs 2 %."""
_SHARE_OF_TIMEOUT = 0.25
_COPIES = 6
"""Tensors of a batch's size in memory for each batch in flight: activations and their serialized form, in and out."""
_SHARE_OF_MEMORY = 0.25


class Window:
    """The number of batches that may be in flight.

    Args:
        fixed: a constant size; by default the size is adaptive.
        first: size to begin with.
        largest: maximum size.
        queued: the window grows while fewer batches than the first number queue, and shrinks while more than the second
            one do.
        timeout: of a request, in seconds; the window keeps batches below a quarter of it.
        remeasure: send a batch alone now and then, to measure the minimum again. Otherwise a window that always
            has a batch waiting forgets what it is without, and grows.
    """

    def __init__(
        self,
        fixed: int | None = None,
        *,
        first: int = FIRST_SIZE,
        largest: int = LARGEST_SIZE,
        queued: tuple[float, float] = _QUEUED,
        timeout: float = 60.0,
        remeasure: bool = False,
    ) -> None:
        self.largest = fixed or largest
        self.size = fixed or min(first, largest)
        self._few_queued, self._many_queued = queued
        self._fixed, self._limit = fixed is not None, timeout * _SHARE_OF_TIMEOUT
        self._recent: deque[float] = deque(maxlen=None if remeasure else _MINIMUM_OVER)
        self._since_change, self._retries, self._starting = 0, 0, True
        self._remeasure, self._until_alone, self._usual_size = remeasure, 0, self.size

    def finished(self, seconds: float, retries: int) -> None:
        """Records a batch that completed, and adapts the size.

        Args:
            seconds: time from sending the batch to its answer.
            retries: total number of repeated requests of this rank so far.
        """
        if self._fixed:
            return
        self._recent.append(seconds)
        self._since_change += 1
        failed, self._retries = retries > self._retries, retries
        if self._is_remeasuring():
            return
        if failed:
            self._shrink_to(self.size // 2)
            return
        # a change only affects batches sent after it; at the start, the window grows with every answer
        if self._since_change < (1 if self._starting else self.size):
            return
        usual = statistics.median(list(self._recent)[-max(3, self.size) :])
        queued = self.size * (1.0 - min(self._recent) / usual) if usual > 0 else 0.0
        if usual > self._limit:
            self._shrink_to(int(self.size * self._limit / usual))
        elif queued > self._many_queued:
            self._shrink_to(self.size - 1)
        elif queued < self._few_queued and self.size < self.largest:
            self.size, self._since_change = self.size + 1, 0
        else:
            self._starting = False

    def _is_remeasuring(self) -> bool:
        """Has a batch sent alone now and then, once all others are there, and forgets what was measured before it."""
        if self._until_alone:
            self._until_alone -= 1
            if not self._until_alone:
                self.size = self._usual_size
                self._recent = deque([self._recent[-1]])
            return True
        if self._remeasure and len(self._recent) >= max(_MINIMUM_OVER, _ALONE_EVERY * self.size):
            self._until_alone, self._usual_size, self.size = self.size, self.size, 1
            return True
        return False

    def _shrink_to(self, size: int) -> None:
        self.size, self._since_change, self._starting = max(1, size), 0, False


def window_in_memory(
    topology: Topology, *, in_flight: int | None, tokens: int, hidden_size: int, timeout: float
) -> Window:
    """Returns a rank's window, sized within its share of the host's memory.

    Args:
        topology: of the ranks.
        in_flight: a constant size; by default the size is adaptive.
        tokens: of a batch, counting padding and prompts.
        hidden_size: width of the activations.
        timeout: of a request, in seconds.
    """
    memory = psutil.virtual_memory().available * topology.hosts // topology.world_size
    return Window(in_flight, largest=largest_window(tokens, hidden_size, memory), timeout=timeout)


def largest_window(tokens: int, hidden_size: int, available_bytes: int) -> int:
    """Returns how many batches fit into a share of the memory.

    Args:
        tokens: of a batch, counting padding and prompts.
        hidden_size: width of the activations, which are float32.
        available_bytes: memory available to this rank.

    Returns:
        At least 1, at most `LARGEST_SIZE`.
    """
    batch = tokens * hidden_size * 4 * _COPIES
    return int(min(LARGEST_SIZE, max(1, available_bytes * _SHARE_OF_MEMORY // batch)))
