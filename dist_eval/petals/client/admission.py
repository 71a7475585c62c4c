"""Limits how many steps of sessions a server gets at once, and how many tokens a second the swarm gets. Does no I/O."""

from __future__ import annotations

import asyncio
import math
import time

from dist_eval.errors import NotSentError
from dist_eval.petals.client.chain_pacing import ChainPacing
from dist_eval.petals.client.pacing import Pacing
from dist_eval.petals.client.unanswered import Ticket

STEPS = 8
"""Maximum number of session steps at a server at once. They take about as long to compute as to transfer, and each is
computed as a whole, so several of them do not form a convoy."""

_LONGEST_WAIT = 0.2  # Seconds until a batch notices that the rate limiter was closed


class ConcurrencyLimit:
    """Limits the number of concurrent steps of sessions at a server or chain, with the methods of its `pacing`.

    Its requests are expected to wait for the steps.
    """

    def __init__(self, limit: int, pacing: Pacing | ChainPacing) -> None:
        self._room, self._pacing = limit, pacing

    def admit(self, work: int, now: float) -> Ticket | float:
        """Admits a step, or returns infinity: it may ask again after the next answer."""
        if not self._room:
            return math.inf
        self._room -= 1
        self._pacing.add_steps(work)
        return Ticket(work, now, now)

    def answered(self, ticket: Ticket, now: float) -> None:
        """Records an answer."""
        self._room += 1
        self._pacing.add_steps(-ticket.work)

    def failed(self, ticket: Ticket, now: float) -> None:
        """Records that a step got no answer."""
        self.answered(ticket, now)


Admission = Pacing | ChainPacing | ConcurrencyLimit
"""Decides when a request may be sent to a server or chain."""


class RateLimiter:
    """Spaces batches to send at most a number of tokens per second. Belongs to one event loop, except for `closed`."""

    def __init__(self, tokens_per_second: float = math.inf) -> None:
        self.closed = False  # whether new batches that still wait are refused
        self._rate, self._free_at = tokens_per_second, -math.inf

    async def wait(self, tokens: int, *, is_new: bool = False) -> None:
        """Waits until a request may be sent.

        If `is_new`, nothing of its batch was sent yet: it raises `NotSentError` if it still waits when the limiter is
        closed.
        """
        start, seconds = max(time.monotonic(), self._free_at), tokens / self._rate
        self._free_at = start + seconds
        while (left := start - time.monotonic()) > 0:
            if self.closed and is_new:
                self._free_at -= seconds
                raise NotSentError
            await asyncio.sleep(min(left, _LONGEST_WAIT))
