"""Sends requests to servers in turn, and records the times and failures of each server.

Requests wait in lines, and a request chooses its servers when it is the first one and they can use it. So a request
never waits for a server that has failed or turned out to be slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dist_eval.petals.client.admission import STEPS, Admission, ConcurrencyLimit
from dist_eval.petals.client.attempts import Choice
from dist_eval.petals.client.chain_pacing import ChainTicket
from dist_eval.petals.client.failures import classify
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.transport import ChainOutputs
from dist_eval.petals.client.unanswered import Ticket

# Seconds until it is checked again whether servers can use a request, because other ranks may have got answers
_SHORTEST_SLEEP, _LONGEST_SLEEP = 0.001, 0.02

_CHOOSE_AGAIN_SECONDS = 0.2  # Seconds until servers are chosen again, for the same reason


class Request(NamedTuple):
    """A request to a server or chain."""

    send: Callable[[float], Awaitable[Any]]  # called in its turn, with the seconds to wait for each answer
    work: int  # tokens times blocks


class Turn(NamedTuple):
    """A request that may be sent now."""

    choice: Choice
    request: Request
    admission: Admission
    ticket: Ticket


@dataclass
class _Line:
    """Requests that wait for the same blocks."""

    first: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the first one
    length: int = 0


class Turns:
    """The lines before all servers. Belongs to one event loop."""

    def __init__(self, router: Router) -> None:
        self.answers = 0  # requests that were answered
        self._router = router
        self._lines: dict[Hashable, _Line] = {}
        self._admissions: dict[tuple[tuple[Span, ...], bool], Admission] = {}
        self._sleeping: list[asyncio.Future[bool]] = []  # of the first request of each line

    async def wait(
        self, line: Hashable, choices: Callable[[int], Iterator[Choice]], make_request: Callable[[Choice], Request]
    ) -> Turn:
        """Waits in a line until servers can use a request.

        `choices` returns the servers to ask, the best ones first, given how many requests wait behind this one; what it
        raises is raised here.
        """
        waiting = self._lines.setdefault(line, _Line())
        waiting.length += 1
        try:
            async with waiting.first:
                while True:
                    chosen = ((choice, make_request(choice)) for choice in choices(waiting.length - 1))
                    if (turn := await self._turn(chosen)) is not None:
                        return turn
        finally:
            waiting.length -= 1
            if not waiting.length:
                del self._lines[line]

    async def _turn(self, chosen: Iterable[tuple[Choice, Request]]) -> Turn | None:
        """Returns the first request that a server can use; None after a while, or once there is news of servers."""
        until = _now() + _CHOOSE_AGAIN_SECONDS
        while (now := _now()) < until:
            sleep, closed = _LONGEST_SLEEP, list[tuple[Choice, Request]]()
            for choice, request in chosen:
                admission = self._admission(choice)
                admitted = admission.admit(request.work, now)
                if isinstance(admitted, Ticket):
                    return Turn(choice, request, admission, admitted)
                sleep = min(sleep, admitted)
                closed.append((choice, request))
            chosen = closed
            if await self._news(max(sleep, _SHORTEST_SLEEP)):
                return None
        return None

    async def _news(self, seconds: float) -> bool:
        """Waits for an answer or a failure, but not longer than some seconds; returns whether there was one."""
        loop = asyncio.get_running_loop()
        news: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(seconds, _tell, news, False)
        self._sleeping.append(news)
        try:
            return await news
        finally:
            timer.cancel()
            self._sleeping.remove(news)

    async def send(self, turn: Turn) -> Any:
        """Sends a request, and returns the answer.

        Raises any error of the daemon, the connection or the server (see `failures.classify`).
        """
        choice, request, admission, ticket = turn
        spans, sent_at = choice.servers, _now()
        try:
            answer = await request.send(choice.stall_timeout)
        except BaseException as error:
            now, failure = _now(), classify(error)
            if isinstance(error, Exception) and failure not in choice.doubtful:  # not if it was given up here
                lost = now - sent_at if isinstance(error, (TimeoutError, asyncio.TimeoutError)) else 0.0
                self._router.stats(choice.segment.peer).failed(now, failure, lost)
            admission.failed(ticket, now)
            self._wake()
            raise
        now = _now()
        self.answers += 1
        times = [(sent_at, now)]
        if isinstance(answer, ChainOutputs):
            times = answer.answer.times(sent_at, now)
            if isinstance(ticket, ChainTicket):
                ticket = replace(ticket, times=times, own=[hop.own for hop in answer.answer.hops])
        for span, (start, done) in zip(spans, times, strict=False):
            work = request.work * (span.end - span.start) // (spans[-1].end - spans[0].start)
            self._router.stats(span.peer).answered(work, start, done)
        admission.answered(ticket, now)
        self._wake()
        return answer

    def _wake(self) -> None:
        """Wakes the first request of each line."""
        for news in self._sleeping:
            _tell(news, True)

    def _admission(self, choice: Choice) -> Admission:
        """Returns what admits forwards, or steps of sessions, to a server or chain."""
        for span in choice.servers:
            server = self._router.stats(span.peer)
            server.announced, server.pacing.announced_seconds_per_work = span.announced, span.seconds_per_work
        chain = tuple(Span(span.peer, span.start, span.end) for span in choice.chain)
        key = chain or (Span(choice.segment.peer, 0, 0),), choice.has_cache
        if key not in self._admissions:
            own = self._router.stats(choice.segment.peer).pacing
            pacing = self._router.pacing_of(chain) if chain else own
            steps = STEPS * max(1, len(chain))
            self._admissions[key] = ConcurrencyLimit(steps, pacing) if choice.has_cache else pacing
        return self._admissions[key]


def _now() -> float:
    """Returns the seconds of `time.monotonic()`, or of an event loop with a time of its own."""
    return asyncio.get_running_loop().time()


def _tell(waiting: asyncio.Future[bool], is_news: bool) -> None:
    if not waiting.done():
        waiting.set_result(is_news)
