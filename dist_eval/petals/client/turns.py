"""Sends requests to servers, each in its turn, and records the times and failures of each server."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dist_eval.petals.client.attempts import Choice
from dist_eval.petals.client.chain_pacing import ChainTicket
from dist_eval.petals.client.failures import classify
from dist_eval.petals.client.gate import STEPS, Admission, ConcurrencyLimit, Gate
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.transport import ChainOutputs

# Seconds between checks of the speeds that other ranks have measured
_LOOK_SECONDS = 0.05


class Request(NamedTuple):
    """A request to one server."""

    send: Callable[[float], Awaitable[Any]]  # called in its turn, with the seconds to wait for each answer
    work: int  # tokens times blocks


class Turns:
    """The gates of servers and chains. Belongs to one event loop.

    Args:
        router: has the statistics of the servers.
        online: returns the online blocks.

    Attributes:
        answers: number of requests that were answered.
    """

    def __init__(self, router: Router, online: Callable[[], Sequence[Span]]) -> None:
        self.answers = 0
        self._router, self._online, self._look_at = router, online, -math.inf
        self._gates: dict[tuple[tuple[Span, ...], bool], Gate] = {}

    async def send(self, request: Request, choice: Choice) -> Any:
        """Sends a request when its server can use it, and returns the answer.

        Raises:
            RequestDisplaced: the request may choose another server.
            Exception: any error of the daemon, the connection or the server (see `failures.classify`).
        """
        spans = choice.servers
        for span in spans:
            server = self._router.stats(span.peer)
            server.announced, server.pacing.announced_seconds_per_work = span.announced, span.seconds_per_work
        gate = self._gate(choice)
        ticket = await gate.enter(request.work)
        sent_at = time.monotonic()
        try:
            answer = await request.send(choice.stall_timeout)
        except BaseException as error:
            now, failure = time.monotonic(), classify(error)
            if failure not in choice.doubtful:
                self._router.stats(choice.segment.peer).failed(now, failure)
            gate.failed(ticket, now)
            raise
        now = time.monotonic()
        self.answers += 1
        times = [(sent_at, now)]
        if isinstance(answer, ChainOutputs):
            times = answer.answer.times(sent_at, now)
            if isinstance(ticket, ChainTicket):
                ticket = replace(ticket, times=times, own=[hop.own for hop in answer.answer.hops])
        for span, (start, done) in zip(spans, times, strict=False):
            work = request.work * (span.end - span.start) // (spans[-1].end - spans[0].start)
            self._router.stats(span.peer).answered(work, start, done)
        gate.answered(ticket, now)
        if len(times) < len(spans):
            self._displace(spans[len(times)].peer, "a server could not be passed requests")
        self._choose_again()
        return answer

    def _look_again(self) -> None:
        """Checks the speeds while this rank gets no answers, because other ranks may have measured some."""
        if time.monotonic() >= self._look_at:
            self._choose_again()

    def _choose_again(self) -> None:
        """Makes waiting requests choose again if servers are faster or slower than expected when they chose."""
        self._look_at = time.monotonic() + _LOOK_SECONDS
        if self._router.speeds_changed(self._online()):
            for (_, is_for_steps), waiting in self._gates.items():
                if not is_for_steps:  # steps stay with the server that has their cache
                    waiting.displace("servers are faster or slower than expected")

    def _displace(self, peer: Any, why: str) -> None:
        """Makes requests choose again that wait for a chain with a server after its first one."""
        for (spans, _), waiting in self._gates.items():
            if any(span.peer == peer for span in spans[1:]):
                waiting.displace(why)

    def _gate(self, choice: Choice) -> Gate:
        """Returns the gate of a server, for forwards or steps of sessions, or of a chain."""
        spans = tuple(Span(span.peer, span.start, span.end) for span in choice.chain)
        key = spans or (Span(choice.segment.peer, 0, 0),), choice.has_cache
        if key not in self._gates:
            own = self._router.stats(choice.segment.peer).pacing
            pacing: Admission = self._router.pacing_of(spans) if len(spans) > 1 else own
            steps = STEPS * max(1, len(spans))
            admission: Admission = ConcurrencyLimit(steps, pacing) if choice.has_cache else pacing
            self._gates[key] = Gate(admission, self._look_again)
        return self._gates[key]
