"""Concurrent calls that wait for the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from dist_eval.inference.window import Window

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
    """Calls a function with each item, in threads, and yields each result as soon as it is there, in any order.

    Args:
        call: the function.
        items: read one by one, in this thread, when there is room in the window.
        window: limits the calls in flight; it is updated with every one that returns.
        retries: returns the total number of repeated requests so far.
        stopping: returns whether to take no further items.
        drain_timeout: seconds that calls in flight then have to return; later ones are dropped.

    Yields:
        The function's results.

    Raises:
        Exception: any that the function raised; calls that have not started are cancelled.
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
                result, seconds = future.result()
                window.finished(seconds, retries())
                yield result
    finally:
        # on an error the rest is dropped: a request in flight cannot be cancelled
        pool.shutdown(wait=False, cancel_futures=True)
