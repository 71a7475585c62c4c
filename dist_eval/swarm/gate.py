"""Limits how many requests of this process a server holds at a time. Does no I/O.

A Petals server works on all the requests that it holds by turns, block by block. So they leave it together, and the
next server has nothing to do until then: a convoy. It is enough that a server is never idle while answers travel, and
how many requests that takes, their latency tells (see `Window`). The others wait here, where they cost nothing, and can
still go to another server if this one fails.
"""

from __future__ import annotations

import asyncio
from collections import deque

from dist_eval.swarm.window import Window

_QUEUED = (0.6, 1.6)
"""Requests that should queue at a server: one that waits is enough. The first request measures the way alone."""


class TurnedAway(Exception):
    """A request was not computed, because another one failed meanwhile: it may be better to ask another server."""


STEPS = 8
"""Size of the gate for the next steps of sessions. They have few tokens and take about as long as the way, which would
look like a queue; and a server works on a session's steps one after the other, so that more of them are no convoy."""


class Gate:
    """The gate before a server. Belongs to one event loop.

    Args:
        fixed: a constant number of requests; by default as many as their latency allows.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._window = Window(fixed, first=1, queued=_QUEUED, timeout=float("inf"), remeasure=True)
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def size(self) -> int:
        """How many requests may be at the server."""
        return self._window.size

    async def enter(self) -> None:
        """Waits until a further request may be sent; `answered` or `failed` has to follow.

        Raises:
            TurnedAway: the server failed meanwhile.
        """
        if self._waiting or self._inside >= self.size:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._inside += 1

    def answered(self, seconds: float) -> None:
        """Records an answer.

        Args:
            seconds: from sending to the answer, for a unit of work.
        """
        self._window.finished(seconds, 0)
        self._inside -= 1
        while self._waiting and self._inside < self.size:
            self._inside += 1
            self._waiting.popleft().set_result(None)

    def failed(self) -> None:
        """Records that a request got no answer, and turns away all that wait."""
        self._inside -= 1
        while self._waiting:
            self._waiting.popleft().set_exception(TurnedAway("the server failed before this request was sent"))
