"""Admits requests of this process to a server in their order, and batches to the swarm. Does no I/O.

Requests that wait here can still go to another server if this one fails.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from dist_eval.errors import NotSentError
from dist_eval.petals.client.failures import RequestDisplaced
from dist_eval.petals.client.unanswered import Ticket

STEPS = 8
"""Maximum number of session steps at a server at once. They take about as long to compute as to transfer, and each is
computed as a whole, so several of them do not form a convoy."""

# Seconds after which a gate checks again, because other ranks may have got answers
_LONGEST_SLEEP = 0.02

_LONGEST_WAIT = 0.2  # Seconds until a batch notices that the rate limiter was closed


class Admission(Protocol):
    """Decides when a request may be sent to a server, such as `Pacing` and `ConcurrencyLimit`."""

    def add_waiting(self, work: int) -> None:
        """Records work that waits at the gate; a negative number is work that no longer waits."""
        ...

    def admit(self, work: int, now: float) -> Ticket | float:
        """Admits a request, or returns the seconds until it may ask again; infinity means after the next answer."""
        ...

    def answered(self, ticket: Ticket, now: float) -> None:
        """Records an answer."""
        ...

    def failed(self, ticket: Ticket, now: float) -> None:
        """Records that a request got no answer."""
        ...


class ConcurrencyLimit:
    """Limits the number of concurrent steps of sessions."""

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
        look_again: called repeatedly while requests wait; it may displace them.
    """

    def __init__(self, admission: Admission, look_again: Callable[[], None] = lambda: None) -> None:
        self._admission, self._look_again = admission, look_again
        self._waiting: deque[tuple[int, asyncio.Future[Ticket]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, work: int) -> Ticket:
        """Waits until a request may be sent; call `answered` or `failed` afterwards."""
        turn: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, turn))
        self._admission.add_waiting(work)
        self._open()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and not turn.exception():  # it has just been admitted
                self._admission.failed(turn.result(), time.monotonic())
            self._open()
            raise

    def answered(self, ticket: Ticket, now: float) -> None:
        """Records an answer."""
        self._admission.answered(ticket, now)
        self._open()

    def failed(self, ticket: Ticket, now: float) -> None:
        """Records that a request got no answer, and displaces all waiting ones."""
        self._admission.failed(ticket, now)
        self.displace("the server failed before this request was sent")

    def displace(self, why: str) -> None:
        """Displaces all waiting requests: each of them raises `RequestDisplaced`."""
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
    """Spaces batches to send at most a number of tokens per second. Belongs to one event loop, except for `closed`.

    Attributes:
        closed: whether new batches are refused that still wait.
    """

    def __init__(self, tokens_per_second: float = math.inf) -> None:
        self.closed = False
        self._rate, self._free_at = tokens_per_second, -math.inf

    async def wait(self, tokens: int, *, is_new: bool = False) -> None:
        """Waits until a request may be sent.

        Args:
            tokens: of the request.
            is_new: whether nothing of its batch was sent yet.

        Raises:
            NotSentError: the limiter was closed before a new batch was sent.
        """
        start, seconds = max(time.monotonic(), self._free_at), tokens / self._rate
        self._free_at = start + seconds
        while (left := start - time.monotonic()) > 0:
            if self.closed and is_new:
                self._free_at -= seconds
                raise NotSentError
            await asyncio.sleep(min(left, _LONGEST_WAIT))
