"""Sends single requests, each to a given server: in its turn, and measured."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from dist_eval.swarm.failures import classify
from dist_eval.swarm.gate import STEPS, AtMost, Gate, TurnedAway
from dist_eval.swarm.p2p_daemon import PeerUnreachable
from dist_eval.swarm.router import Router, Span

# How often a server's round trip is measured, and the longest time that this takes
_ROUND_TRIPS, _ROUND_TRIP_SECONDS = 2, 2.0

Answer = TypeVar("Answer")


class Dispatcher:
    """Sends requests through the gates of their servers. Belongs to one event loop."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._gates: dict[tuple[Any, bool], Gate] = {}

    async def send(
        self,
        request: Coroutine[Any, Any, Answer],
        segment: Span,
        work: int,
        stall_timeout: float,
        *,
        is_step: bool = False,
    ) -> Answer:
        """Sends a request when its server can use it."""
        server = self._router.stats(segment.peer)
        server.announced, server.pacing.announced_seconds_per_work = segment.announced, segment.seconds_per_work
        gate = self._gate(segment.peer, is_step)
        try:
            ticket = await gate.enter(work)
        except BaseException:
            request.close()
            raise
        sent_at = time.monotonic()
        try:
            answer = await asyncio.wait_for(request, stall_timeout)
        except BaseException as error:
            now = time.monotonic()
            if isinstance(error, PeerUnreachable):
                server.not_listening(now)
            elif not isinstance(error, TurnedAway):
                server.failed(now, classify(error))
                server.timeline.add(sent_at, now, done=0, failed=1)
            gate.failed(ticket, now)
            raise
        server.answered(work, sent_at, now := time.monotonic())
        server.timeline.add(sent_at, now)
        gate.answered(ticket, now)
        return answer

    async def measure_round_trips(self, spans: Sequence[Span], ask: Callable[[Span], Awaitable[Any]]) -> None:
        """Measures how long messages to servers take; those that take long to answer are left out."""

        async def measure(span: Span) -> None:
            with contextlib.suppress(Exception):  # any of the daemon, the connection or the server
                await ask(span)  # opens the connection
                for _ in range(_ROUND_TRIPS):
                    sent_at = time.monotonic()
                    await ask(span)
                    self._router.stats(span.peer).pacing.measured_round_trip(time.monotonic() - sent_at)

        tasks = [asyncio.ensure_future(measure(span)) for span in spans]
        await asyncio.wait(tasks, timeout=_ROUND_TRIP_SECONDS)
        for task in tasks:
            task.cancel()

    def _gate(self, peer: Any, is_for_steps: bool) -> Gate:
        key = peer, is_for_steps
        if key not in self._gates:
            pacing = self._router.stats(peer).pacing
            self._gates[key] = Gate(AtMost(STEPS, pacing) if is_for_steps else pacing)
        return self._gates[key]
