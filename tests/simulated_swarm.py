"""A swarm in simulated time: servers that compute, and ranks that send to them with the real router and lines."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dist_eval.petals.client.attempts import Attempts, Choice, RoutePart
from dist_eval.petals.client.chain import ChainAnswer, HopTimes
from dist_eval.petals.client.petals_version import ANNOUNCED
from dist_eval.petals.client.records import Announcement
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.transport import ChainOutputs
from dist_eval.petals.client.turns import Request, Turns

TOKENS = 1000
"""Of a batch."""

BEGIN = 100.0

_INSTANT = 1e-10  # seconds between calls for the same time, to keep their order

_WATCHED_SECONDS = 20.0
"""How long ranks go on after a server has stopped."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing can run."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self._calls = BEGIN, 0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        self._calls += 1
        return super().call_at(when + _INSTANT * self._calls, *args, **kwargs)

    def _run_once(self) -> None:
        inner: Any = self
        while inner._scheduled and inner._scheduled[0].cancelled():  # else it would really wait for the next one
            inner._timer_cancelled_count -= 1
            heapq.heappop(inner._scheduled)._scheduled = False
        if not inner._ready and inner._scheduled:
            self.now = max(self.now, inner._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


@dataclass
class Server:
    """Works on one thing at a time: a block of the request that has waited longest, or all its blocks.

    Attributes:
        rate: seconds for a token through a block.
        noise: most by which the time for a block deviates, as a share.
        stops_at: from when on it does not answer.
        in_order: whether it finishes a request before it begins the next one, as servers of dist_eval mostly do.
        most_held: most requests that it had at once.
    """

    rate: float
    noise: float = 0.0
    stops_at: float = float("inf")
    in_order: bool = False
    most_held: int = 0
    _held: int = 0
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    async def compute(self, blocks: int) -> None:
        self._held += 1
        self.most_held = max(self.most_held, self._held)
        at_once = blocks if self.in_order else 1
        for _ in range(blocks // at_once):
            async with self._busy:
                if asyncio.get_running_loop().time() >= self.stops_at:
                    await asyncio.Event().wait()
                noise = 1.0 + self.noise * self._random.uniform(-1.0, 1.0)
                await asyncio.sleep(at_once * self.rate * TOKENS * noise)
        self._held -= 1


@dataclass
class Rank:
    """Sends batches through all blocks.

    Attributes:
        router: chooses servers.
        spans: the servers' blocks.
        servers: by peer.
        way: seconds from sending a request to its answer, without the server's time.
        jitter: most seconds by which either direction takes longer at times.
        chained: whether servers pass requests on to each other.
        choose: chooses the server for a block instead of the router.
        counts: requests by server.
        finished: number of batches that were answered.
    """

    router: Router
    spans: Sequence[Span]
    servers: Mapping[str, Server]
    way: float
    jitter: float
    chained: bool
    choose: Callable[[int], Span] | None
    counts: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(8))

    async def run(self, batches: int, window: int) -> None:
        """Sends batches, a number of them at once."""
        turns, left = Turns(self.router), iter(range(batches))

        async def send_some() -> None:
            for _ in left:
                await self._batch(turns)

        await asyncio.gather(*(send_some() for _ in range(window)))

    async def _batch(self, turns: Turns) -> None:
        block, end = 0, max(span.end for span in self.spans)
        while block < end:
            part = RoutePart(block, end, TOKENS, chained=self.chained)
            turn = await turns.wait(part.line, self._choices(part), self._request)
            await turns.send(turn)
            block = turn.choice.end
        self.finished += 1

    def _choices(self, part: RoutePart) -> Callable[[int], Iterator[Choice]]:
        clock, forever = asyncio.get_running_loop().time, float("inf")
        if self.choose is not None:
            choice = Choice(self.choose(part.block), forever, self.spans, clock())
            return lambda waiting: iter([choice])
        attempts = Attempts(self.router, part, limit=1, timeout=forever)
        return lambda waiting: attempts.choices(self.spans, clock(), waiting)

    def _request(self, choice: Choice) -> Request:
        spans = choice.servers

        async def send(stall_timeout: float) -> Any:
            loop, own, done = asyncio.get_running_loop(), list[float](), list[float]()
            for span in spans:
                await self._travel()
                self.counts[span.peer] += 1
                received = loop.time()
                await self.servers[span.peer].compute(span.end - span.start)
                done.append(loop.time())
                own.append(done[-1] - received)
            calls = list[float]()
            for finished in reversed(done):
                calls.insert(0, loop.time() - finished)
                await self._travel()
            hops = [HopTimes(own=seconds, call=call) for seconds, call in zip(own, calls, strict=True)]
            return ChainOutputs(None, ChainAnswer(end=choice.end, hops=hops)) if choice.chain else None

        return Request(send, TOKENS * (spans[-1].end - spans[0].start))

    async def _travel(self) -> None:
        await asyncio.sleep(self.way / 2 + self._random.uniform(0.0, self.jitter))


def simulate(
    spans: Sequence[Span],
    servers: Mapping[str, Server],
    batches: int,
    *,
    way: float = 0.0,
    jitter: float = 0.0,
    window: int = 16,
    routers: Sequence[Router] | None = None,
    measured: float | None = None,
    choose: Callable[[int], Span] | None = None,
    chained: bool = False,
) -> tuple[float, list[Rank]]:
    """Sends batches through a swarm.

    Args:
        spans: the servers' blocks.
        servers: by peer.
        batches: number of batches.
        way: seconds from sending a request to its answer, without the server's time.
        jitter: most seconds by which either direction takes longer at times.
        window: most batches of a rank in flight.
        routers: of each rank; the batches are shared out evenly.
        measured: round trip that was measured before, by default the true one; 0 if it was not measured.
        choose: chooses the server for a block instead of the router.
        chained: whether servers pass requests on to each other.

    Returns:
        Seconds until the last answer, and the ranks.
    """
    if chained:
        spans = [replace(span, announced=Announcement(version=ANNOUNCED)) for span in spans]
    ranks = [Rank(router, spans, servers, way, jitter, chained, choose) for router in routers or [Router()]]
    for rank in ranks:
        for peer in servers if measured != 0 else ():
            rank.router.stats(peer).pacing.measured_round_trip(way if measured is None else measured)
    stops_at = min(server.stops_at for server in servers.values())

    async def run() -> float:
        runs = (rank.run(len(range(number, batches, len(ranks))), window) for number, rank in enumerate(ranks))
        tasks = [asyncio.ensure_future(one) for one in runs]
        watched = None if stops_at == float("inf") else stops_at + _WATCHED_SECONDS - BEGIN
        _, hanging = await asyncio.wait(tasks, timeout=watched)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=bool(hanging))
        return asyncio.get_running_loop().time() - BEGIN

    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(run()), ranks
    finally:
        loop.close()
