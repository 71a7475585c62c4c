"""Lets requests of this process through to a server, in their order, and batches to the swarm. Does no I/O.

Those that wait here cost nothing, and can still go to another server if this one fails.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from dist_eval.petals.client.failures import RequestDisplaced
from dist_eval.petals.client.unanswered import Ticket

STEPS = 8
"""Requests at a server at a time that are the next steps of sessions. They have few tokens and take about as long as
the way; and a server works on a session's steps one after the other, so that more of them are no convoy."""

# Seconds after which a gate looks again: another rank may have had an answer, earlier than expected or later
_LONGEST_SLEEP = 0.02


class Admission(Protocol):
    """Decides when a request may be sent to a server: `Pacing`, or `ConcurrencyLimit` a number of them."""

    def add_waiting(self, work: int) -> None:
        """Records work that waits before the gate; a negative number is work that does so no longer."""
        ...

    def admit(self, work: int, now: float) -> Ticket | float:
        """Lets a request through, or returns the seconds until it may ask again, infinite for after the next answer."""
        ...

    def answered(self, ticket: Ticket, now: float) -> None:
        """Records an answer."""
        ...

    def failed(self, ticket: Ticket, now: float) -> None:
        """Records that a request got no answer."""
        ...


class ConcurrencyLimit:
    """At most a number of steps of sessions at a time."""

    def __init__(self, limit: int, pacing: Admission) -> None:
        self._room, self._pacing = limit, pacing

    def add_waiting(self, work: int) -> None:
        """See `Admission`."""
        self._pacing.add_waiting(work)

    def admit(self, work: int, now: float) -> Ticket | float:
        """See `Admission`."""
        if not self._room:
            return math.inf
        self._room -= 1
        self._pacing.add_waiting(work)
        return Ticket(work, now, now)

    def answered(self, ticket: Ticket, now: float) -> None:
        """See `Admission`."""
        self._room += 1
        self._pacing.add_waiting(-ticket.work)

    def failed(self, ticket: Ticket, now: float) -> None:
        """See `Admission`."""
        self.answered(ticket, now)


class Gate:
    """The gate before a server. Belongs to one event loop.

    Args:
        admission: decides when a request may be sent.
        look_again: called every now and then while requests wait; it may displace them.
    """

    def __init__(self, admission: Admission, look_again: Callable[[], None] = lambda: None) -> None:
        self._admission, self._look_again = admission, look_again
        self._waiting: deque[tuple[int, asyncio.Future[Ticket]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, work: int) -> Ticket:
        """Waits until a request may be sent; `answered` or `failed` has to follow."""
        turn: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, turn))
        self._admission.add_waiting(work)
        self._open()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and not turn.exception():  # it was let in just before
                self._admission.failed(turn.result(), time.monotonic())
            self._open()
            raise

    def answered(self, ticket: Ticket, now: float) -> None:
        """Records an answer."""
        self._admission.answered(ticket, now)
        self._open()

    def failed(self, ticket: Ticket, now: float) -> None:
        """Records that a request got no answer, and displaces all that wait."""
        self._admission.failed(ticket, now)
        self.displace("the server failed before this request was sent")

    def displace(self, why: str) -> None:
        """Turns away all that wait: each of them raises `RequestDisplaced`."""
        while self._waiting:
            if not (turn := self._next()).cancelled():
                turn.set_exception(RequestDisplaced(why))

    def _open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            work, turn = self._waiting[0]
            if turn.cancelled():
                self._next()
                continue
            admitted = self._admission.admit(work, time.monotonic())
            if not isinstance(admitted, Ticket):
                if admitted < math.inf:
                    wait = min(admitted, _LONGEST_SLEEP)
                    self._timer = asyncio.get_running_loop().call_later(wait, self._wake)
                return
            self._next().set_result(admitted)

    def _wake(self) -> None:
        self._look_again()
        self._open()

    def _next(self) -> asyncio.Future[Ticket]:
        work, turn = self._waiting.popleft()
        self._admission.add_waiting(-work)
        return turn


class RateLimiter:
    """Spaces batches so that no more than a number of tokens is sent in a second. Belongs to one event loop."""

    def __init__(self, tokens_per_second: float = math.inf) -> None:
        self._rate, self._free_at = tokens_per_second, -math.inf

    async def wait(self, tokens: int) -> None:
        """Waits until a batch may be sent."""
        now = time.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + tokens / self._rate
        if start > now:
            await asyncio.sleep(start - now)
