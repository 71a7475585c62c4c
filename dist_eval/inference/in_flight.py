"""Concurrent calls that wait for the network, and their optimal number."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import NotSentError
from dist_eval.process.memory_limits import available_memory

FIRST_SIZE, LARGEST_SIZE = 16, 64
_FEW_QUEUED, _MANY_QUEUED = 2.0, 6.0  # the window grows while fewer batches queue, and shrinks while more do
_MINIMUM_OVER = 200  # batches for the minimum latency; older ones may reflect other network conditions
_SHARE_OF_TIMEOUT = 0.25
# tensors of a batch's size per batch in flight: activations and their serialized form, in and out
_COPIES = 6
_SHARE_OF_MEMORY = 0.25


class Window:
    """The adaptive number of batches that a rank keeps in flight.

    Too few leave the servers idle while answers travel; too many wait in queues, use memory and approach the servers'
    timeouts. Latency shows which: the minimum is that of a batch that did not queue, and the excess is queueing. So the
    number of queued batches is `size * (1 - minimum / median)`. The window grows while few batches queue and shrinks
    when many do, as in TCP Vegas (Brakmo and Peterson, 1995, "TCP Vegas: end to end congestion avoidance on a global
    Internet"). While batches queue, the servers are never idle, and more batches would not increase throughput.

    A `fixed` size is constant; by default the size is adaptive. `timeout` is the time limit of a request, in seconds;
    the window keeps the latency below a quarter of it.
    """

    def __init__(self, fixed: int | None = None, *, largest: int = LARGEST_SIZE, timeout: float = 60.0) -> None:
        self.largest = fixed or largest
        self.size = fixed or min(FIRST_SIZE, largest)
        self._fixed, self._limit = fixed is not None, timeout * _SHARE_OF_TIMEOUT
        self._recent: deque[float] = deque(maxlen=_MINIMUM_OVER)
        self._since_change, self._retries, self._starting = 0, 0, True

    def finished(self, seconds: float, retries: int) -> None:
        """Records a batch that completed `seconds` after it was sent, and adapts the size.

        `retries` is the number of repeated requests of this rank so far.
        """
        if self._fixed:
            return
        self._recent.append(seconds)
        self._since_change += 1
        failed, self._retries = retries > self._retries, retries
        if failed:
            self._shrink_to(self.size // 2)
            return
        # a change affects only later batches; at the start, the window grows with every answer
        if self._since_change < (1 if self._starting else self.size):
            return
        usual = statistics.median(list(self._recent)[-max(3, self.size) :])
        queued = self.size * (1.0 - min(self._recent) / usual) if usual > 0 else 0.0
        if usual > self._limit:
            self._shrink_to(int(self.size * self._limit / usual))
        elif queued > _MANY_QUEUED:
            self._shrink_to(self.size - 1)
        elif queued < _FEW_QUEUED and self.size < self.largest:
            self.size, self._since_change = self.size + 1, 0
        else:
            self._starting = False

    def _shrink_to(self, size: int) -> None:
        self.size, self._since_change, self._starting = max(1, size), 0, False


def window_in_memory(
    topology: Topology, *, in_flight: int | None, tokens: int, hidden_size: int, timeout: float, gradients: int = 0
) -> Window:
    """Returns a rank's window, sized within its share of the host's memory.

    `in_flight` is a constant size, None an adaptive one. `tokens` are those of a batch, including padding and prompts.
    `hidden_size` is the width of the activations, `timeout` the time limit of a request, in seconds. Servers answer
    with `gradients` further tensors of a batch's size, such as those of deep prompts, one per text and block.
    """
    memory = available_memory() * topology.hosts // topology.world_size
    return Window(in_flight, largest=largest_window(tokens, hidden_size, memory, gradients), timeout=timeout)


def largest_window(tokens: int, hidden_size: int, available_bytes: int, gradients: int = 0) -> int:
    """Returns the number of batches that fit into a fraction of the memory."""
    batch = tokens * hidden_size * 4 * (_COPIES + gradients)
    return int(min(LARGEST_SIZE, max(1, available_bytes * _SHARE_OF_MEMORY // batch)))


Item = TypeVar("Item")
Result = TypeVar("Result")

_POLL_SECONDS = 0.2


def map_in_flight(
    call: Callable[[Item], Result],
    items: Iterable[Item],
    window: Window,
    *,
    retries: Callable[[], int] = lambda: 0,
    stopping: Callable[[], bool] = lambda: False,
    drain_timeout: float = 0.0,
) -> Generator[Result, None, None]:
    """Calls a function with each item, in threads, and yields each result when it is ready, in any order.

    An error of the function is raised, and calls that have not started are cancelled.

    Args:
        call: the function.
        items: read one by one, in this thread, when the window has space.
        window: limits the calls in flight; updated after each call.
        retries: returns the number of repeated requests so far.
        stopping: returns whether to stop taking items.
        drain_timeout: time for calls in flight to return after that, in seconds; later ones are dropped, as are those
            that raise `NotSentError`.
    """

    def timed(item: Item) -> tuple[Result, float]:
        start = time.monotonic()
        return call(item), time.monotonic() - start

    left, deadline = iter(items), float("inf")
    pool = ThreadPoolExecutor(max_workers=window.largest, thread_name_prefix="in flight")
    pending: set[Future[tuple[Result, float]]] = set()
    try:
        while time.monotonic() < deadline:
            if deadline == float("inf") and stopping():
                deadline, left = time.monotonic() + drain_timeout, iter(())
            while len(pending) < window.size:
                try:
                    item = next(left)
                except StopIteration:
                    break
                pending.add(pool.submit(timed, item))
            if not pending:
                return
            done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    result, seconds = future.result()
                except NotSentError:
                    if deadline == float("inf"):
                        raise
                    continue
                window.finished(seconds, retries())
                yield result
    finally:
        # on an error the rest is dropped, because requests in flight cannot be cancelled
        pool.shutdown(wait=False, cancel_futures=True)
