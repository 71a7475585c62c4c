"""Calls that wait for a network, several at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from dist_eval.inference.window import Window

Item = TypeVar("Item")
Result = TypeVar("Result")

_STOP_LOOK_SECONDS = 0.2


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
        window: how many calls may be under way at a time; it is told of every one that came back.
        retries: requests that had to be repeated so far, in all.
        stopping: whether no further item is to be taken.
        drain_timeout: seconds that calls under way then have to come back; later ones are dropped.

    Yields:
        What the function returned.

    Raises:
        Exception: what it raised; the calls that did not begin are given up.
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
            done, pending = wait(pending, timeout=_STOP_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                result, seconds = future.result()
                window.finished(seconds, retries())
                yield result
    finally:
        # on an error the rest is given up: a request under way cannot be called back
        pool.shutdown(wait=False, cancel_futures=True)
