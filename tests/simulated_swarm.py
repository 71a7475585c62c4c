"""A swarm in simulated time: servers that work block by block, by turns, as Petals' do, and ranks that send to them."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.unanswered import Ticket

TOKENS = 1000
"""Of a batch."""

BEGIN = 100.0

_WATCHED_SECONDS = 20.0
"""How long ranks go on trying to send to a server that has stopped."""


class Clock:
    """Simulated time."""

    def __init__(self) -> None:
        self.now = BEGIN
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def run(self) -> None:
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()


@dataclass
class Server:
    """Works on one thing at a time: a block of the request that has waited longest.

    Attributes:
        rate: seconds for a token through a block.
        noise: most by which the time for a block deviates, as a share.
        stops_at: from when on it does not answer.
    """

    clock: Clock
    rate: float
    noise: float = 0.0
    stops_at: float = float("inf")
    most_held: int = 0
    received: int = 0
    _held: int = 0
    _is_busy: bool = False
    _queue: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    _random: random.Random = field(default_factory=lambda: random.Random(7))

    def receive(self, blocks: int, answer: Callable[[], None]) -> None:
        self.received += 1
        self._held += 1
        self.most_held = max(self.most_held, self._held)
        self._queue.append((blocks, answer))
        self._work()

    def _work(self) -> None:
        if not self._is_busy and self._queue and self.clock.now < self.stops_at:
            self._is_busy = True
            blocks, answer = self._queue.popleft()
            seconds = self.rate * TOKENS * (1.0 + self.noise * self._random.uniform(-1.0, 1.0))
            self.clock.after(seconds, lambda: self._done(blocks - 1, answer))

    def _done(self, blocks: int, answer: Callable[[], None]) -> None:
        self._is_busy = False
        if blocks:
            self._queue.append((blocks, answer))
        else:
            self._held -= 1
            answer()
        self._work()


class Rank:
    """Sends batches through all blocks.

    Args:
        spans: the servers' blocks.
        servers: by peer.
        way: seconds from sending a request to its answer, without the server's time.
        jitter: most seconds by which either direction takes longer at times.
        window: most batches in flight.
        choose: chooses a server instead of the router.
    """

    def __init__(
        self,
        router: Router,
        clock: Clock,
        spans: Sequence[Span],
        servers: Mapping[str, Server],
        *,
        way: float,
        jitter: float,
        window: int,
        choose: Callable[[int], Span] | None = None,
    ) -> None:
        self.router, self.clock, self.spans, self.servers, self.way = router, clock, spans, servers, way
        self.jitter, self._random = jitter, random.Random(8)
        self.blocks, self.window, self.choose = max(span.end for span in spans), window, choose
        self.counts, self.left, self.finished = Counter[str](), 0, 0
        self._waiting: dict[str, deque[Span]] = {peer: deque() for peer in servers}
        self._timers = Counter[str]()

    def start(self, batches: int) -> None:
        self.left = batches
        for _ in range(min(self.window, batches)):
            self._next_batch()

    def _next_batch(self) -> None:
        if self.left:
            self.left -= 1
            self._send(0)

    def _send(self, block: int) -> None:
        if self.choose is None:
            segment = self.router.next_segment(self.spans, block, self.blocks, TOKENS, self.clock.now)
        else:
            segment = self.choose(block)
        assert segment is not None
        self.router.stats(segment.peer).pacing.announced_seconds_per_work = segment.seconds_per_work
        self._waiting[segment.peer].append(segment)
        self.router.stats(segment.peer).pacing.add_waiting(TOKENS * (segment.end - segment.start))
        self._pump(segment.peer)

    def _pump(self, peer: str) -> None:
        """Sends what may be sent, as `Gate` does, and looks again later; an earlier timer counts no more."""
        self._timers[peer] += 1
        timer = self._timers[peer]

        def look_again() -> None:
            if timer == self._timers[peer] and not self._choose_again():
                self._pump(peer)

        pacing, waiting = self.router.stats(peer).pacing, self._waiting[peer]
        while waiting:
            work = TOKENS * (waiting[0].end - waiting[0].start)
            admitted = pacing.admit(work, self.clock.now)
            if not isinstance(admitted, Ticket):
                if self.clock.now < self.servers[peer].stops_at + _WATCHED_SECONDS:
                    self.clock.after(max(1e-6, min(admitted, 0.02)), look_again)
                return
            pacing.add_waiting(-work)
            self._pass_on(waiting.popleft(), admitted)

    def _pass_on(self, segment: Span, ticket: Ticket) -> None:
        blocks = segment.end - segment.start
        self.counts[segment.peer] += 1

        def answered() -> None:
            server = self.router.stats(segment.peer)
            server.pacing.answered(ticket, self.clock.now)
            server.answered(TOKENS * blocks, ticket.sent_at, self.clock.now)
            self._pump(segment.peer)
            self._choose_again()
            if segment.end < self.blocks:
                self._send(segment.end)
            else:
                self.finished += 1
                self._next_batch()

        def answers() -> None:
            self.clock.after(self._half_way(), answered)

        server = self.servers[segment.peer]
        self.clock.after(self._half_way(), lambda: server.receive(blocks, answers))

    def _choose_again(self) -> bool:
        if self.choose is not None or not self.router.speeds_changed(self.spans):
            return False
        displaced = [segment for waiting in self._waiting.values() for segment in waiting]
        for segment in displaced:
            self._waiting[segment.peer].clear()
            self.router.stats(segment.peer).pacing.add_waiting(-TOKENS * (segment.end - segment.start))
        for segment in displaced:
            self._send(segment.start)
        return True

    def _half_way(self) -> float:
        return self.way / 2 + self._random.uniform(0.0, self.jitter)


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
) -> tuple[float, list[Rank]]:
    """Sends batches through a swarm.

    Args:
        routers: of each rank; the batches are shared out evenly.
        measured: round trip that was measured before, by default the true one; 0 if it was not measured.

    Returns:
        Seconds until the last answer, and the ranks.
    """
    clock = next(iter(servers.values())).clock
    ranks = [
        Rank(router, clock, spans, servers, way=way, jitter=jitter, window=window, choose=choose)
        for router in routers or [Router()]
    ]
    for number, rank in enumerate(ranks):
        for peer in servers if measured != 0 else ():
            rank.router.stats(peer).pacing.measured_round_trip(way if measured is None else measured)
        rank.start(len(range(number, batches, len(ranks))))
    clock.run()
    return clock.now - BEGIN, ranks
