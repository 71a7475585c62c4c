"""Routes requests by the measured speed of servers. Does no I/O.

A request takes the route with the least expected latency. It follows from each server's `pacing`: its speed, its
network delay, and the work that it was sent. Until a server's first answer, its announced speed is used, scaled by the
measured ones. So replicas get work in proportion to their speed, and a server that fails is banned for a while.
"""

from __future__ import annotations

import hashlib
import math
import random
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dist_eval.petals.client.chain_pacing import ChainPacing
from dist_eval.petals.client.failures import Failure
from dist_eval.petals.client.pacing import Pacing
from dist_eval.petals.client.records import Announcement, ServerTraffic
from dist_eval.petals.client.routes import UNKNOWN, Span
from dist_eval.process.shared_state import SharedStates

_BAN_SECONDS, _LONGEST_BAN_SECONDS = 1.0, 60.0
# A first ban lasts at least this multiple of the time that a request without an answer took, so that a hung server,
# tried again and again, costs at most a fifth of the time
_BAN_PER_SECOND_LOST = 4.0
_SEGMENT_BLOCKS = 0.25  # Least cost of a segment, in blocks: without measurements, fewer segments are better
_JITTER = 0.02  # Relative noise on costs, which breaks ties between equal servers differently on each rank
_LATENCIES_KEPT, _RECENT = 1_000, 20
# Most times that an unmeasured server may be expected to be faster than the slowest announced and the fastest measured
# one, whatever it announces: more would only affect its first requests
_MOST_AHEAD = 30.0


@dataclass
class Ban:
    """A ban after a failure, longer for each further failure in a row."""

    _streak: int = 0
    _until: float = -math.inf

    def longer(self, now: float, lost: float = 0.0) -> None:
        """Bans it after a failure that cost `lost` seconds, longer than last time, unless it is banned already."""
        if not self.holds(now):
            seconds = max(_BAN_SECONDS, _BAN_PER_SECOND_LOST * lost) * self.growth
            self.at_least(min(seconds, _LONGEST_BAN_SECONDS), now)
            self._streak += 1

    def at_least(self, seconds: float, now: float) -> None:
        """Bans it for at least a number of seconds."""
        self._until = max(self._until, now + seconds)

    def holds(self, now: float) -> bool:
        """Whether it is banned."""
        return now < self._until

    @property
    def growth(self) -> int:
        """What times grow by after failures in a row: 2 for each, up to ten."""
        return 2 ** min(self._streak, 10)

    def worked(self) -> None:
        """Records a success: the next ban is short again."""
        self._streak = 0

    def lift(self) -> None:
        """Ends the ban."""
        self._until = -math.inf


@dataclass
class ServerStats:
    """Statistics of a server."""

    requests: int = 0  # answered requests
    failures: int = 0  # failed requests
    wrong_answers: int = 0  # failed requests with an invalid answer
    work: int = 0  # tokens times blocks of all answered requests
    # seconds from request to answer of the latest requests
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES_KEPT))
    # the same of the last few, and divided by their work
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    announced: Announcement = UNKNOWN  # its announcement when it was last asked
    pacing: Pacing = field(default_factory=Pacing)  # when it can use another forward
    largest_answered: int = 0  # tokens of the largest request that it answered
    limit: float = math.inf  # most tokens of a request that it may accept: it refused larger ones
    refusal: str = ""  # its message when it refused
    ban: Ban = field(default_factory=Ban)

    def answered(self, work: int, sent_at: float, now: float) -> None:
        """Records the answer to a request."""
        self.requests += 1
        self.work += work
        self.latencies.append(now - sent_at)
        self.recent.append((now - sent_at, (now - sent_at) / max(work, 1)))
        self.ban.worked()

    def failed(self, now: float, failure: Failure = Failure.UNREACHABLE, lost: float = 0.0) -> None:
        """Records a failed request, which cost `lost` seconds, and bans the server, longer each time in a row.

        Failures that may be the client's fault ban it briefly or not at all; a wrong answer bans it for the longest
        time. Requests that were not sent do not count.
        """
        if failure is Failure.CHOOSE_AGAIN:
            return
        if failure is Failure.NOT_LISTENING:
            self.ban.longer(now)
            return
        self.failures += 1
        if failure is Failure.TOO_LARGE:
            return
        if failure in (Failure.REFUSED, Failure.NO_CACHE):
            self.ban.at_least(_BAN_SECONDS, now)
        elif failure is Failure.WRONG:
            self.wrong_answers += 1
            self.ban.at_least(_LONGEST_BAN_SECONDS, now)
        else:
            self.ban.longer(now, lost)

    def refused_size(self, tokens: int, stated: int | None, refusal: str, now: float) -> None:
        """Records that it refused a request as too large; from now on it gets only smaller ones.

        It is banned if it accepted as many tokens before, or states a limit that the request did not exceed.
        """
        if tokens <= max(self.largest_answered, stated or 0):
            self.ban.longer(now)
        self.limit = min(self.limit, tokens - 1, self.limit if stated is None else stated)
        self.refusal = refusal

    def retract(self, failure: Failure) -> None:
        """Lifts the ban for a wrong answer or a refusal that the request caused, because other servers did the same."""
        self.wrong_answers -= failure is Failure.WRONG
        self.ban.lift()

    def usual_latency(self, work: int) -> float | None:
        """Returns the latency of a request by recent ones, of equal work or at equal speed; None without any."""
        if not self.recent:
            return None
        seconds, seconds_per_work = map(statistics.median, zip(*self.recent, strict=True))
        return max(seconds, seconds_per_work * work)

    def is_banned(self, now: float) -> bool:
        """Whether it failed recently."""
        return self.ban.holds(now)

    def traffic(self, peer: str) -> ServerTraffic:
        """Returns the statistics for `results.json`."""
        latencies = sorted(self.latencies)
        count = len(latencies)
        return ServerTraffic(
            peer=peer,
            announced=self.announced,
            requests=self.requests,
            failures=self.failures,
            wrong_answers=self.wrong_answers,
            token_blocks=self.work,
            latency_p50=latencies[(count - 1) // 2] if count else None,
            latency_p95=latencies[min(count - 1, int(0.95 * count))] if count else None,
        )


class Router:
    """Chooses routes, and keeps statistics of the servers. Not thread-safe.

    Args:
        seed: seed of the noise that breaks ties between equal servers; different on each rank.
        shared: shares the servers' pacing with the other ranks of this host.
        period: seconds in which a rank gets an answer or gives a request up, unless it hangs. Requests sent before the
            previous period are forgotten, and ranks that hang do not count as waiting.
    """

    def __init__(self, seed: int = 0, shared: SharedStates | None = None, period: float = math.inf) -> None:
        self.servers: dict[Any, ServerStats] = {}  # by peer
        self.chains: dict[tuple[Any, ...], Ban] = {}  # by peers, of chains whose servers failed to pass requests on
        self.retries = 0  # requests that were repeated
        self._shared, self._period, self._random = shared, period, random.Random(seed)

    def stats(self, peer: Any) -> ServerStats:
        """Returns the statistics of a server."""
        if peer not in self.servers:
            self.servers[peer] = ServerStats(pacing=Pacing(self._shared, str(peer), self._period))
        return self.servers[peer]

    def slowest_latency(self, work: int) -> float | None:
        """Returns the usual latency of the slowest server for a request; None before the first answer."""
        usual = (server.usual_latency(work) for server in self.servers.values())
        return max((latency for latency in usual if latency is not None), default=None)

    def pacing_of(self, chain: Sequence[Span]) -> ChainPacing:
        """Returns the pacing of requests that servers pass on to each other, or of a single server that could."""
        name = hashlib.sha256(repr([(str(span.peer), span.start, span.end) for span in chain]).encode()).hexdigest()
        parts = [(self.stats(span.peer).pacing, span.end - span.start) for span in chain]
        return ChainPacing(parts, self._shared, name, self._period)

    def ban_chain(self, peers: Sequence[Any], now: float) -> None:
        """Bans a chain of servers for a while; a chain of one server still gets requests like others."""
        self.chains.setdefault(tuple(peers), Ban()).longer(now)

    def may_chain(self, peers: Sequence[Any], now: float) -> bool:
        """Whether the last of these servers may be added to the chain of the others."""
        ends = (tuple(peers[start:]) for start in range(len(peers)))
        return not self.chains or not any(end in self.chains and self.chains[end].holds(now) for end in ends)

    def route(self, spans: Sequence[Span], start: int, end: int, tokens: int, now: float) -> Sequence[Span]:
        """Chooses the route from block `start` to `end` that should be fastest; empty if there is none.

        A request of `tokens`, including padding and prompts, may change servers wherever a server's blocks start or
        end. Banned servers are used only if there is no other route.
        """
        healthy = [span for span in spans if not self.stats(span.peer).is_banned(now)]
        return self._fastest(healthy, start, end, tokens, now) or self._fastest(spans, start, end, tokens, now)

    def seconds(
        self, route: Sequence[Span], spans: Sequence[Span], tokens: int, now: float
    ) -> list[tuple[float, float]]:
        """Returns for each segment of a route the expected latency, and the server's own time, in seconds."""
        expected, found = self._expected_rates(spans), list[tuple[float, float]]()
        for span in route:
            outlook = self.stats(span.peer).pacing.outlook(now, expected[span.peer])
            work = tokens * (span.end - span.start)
            found.append((outlook.latency(work), outlook.rate * work))
        return found

    def _fastest(self, spans: Sequence[Span], start: int, end: int, tokens: int, now: float) -> Sequence[Span]:
        expected = self._expected_rates(spans)
        outlooks = {peer: self.stats(peer).pacing.outlook(now, rate) for peer, rate in expected.items()}
        points = sorted({p for span in spans for p in (span.start, span.end) if start < p < end} | {start, end})
        cost: dict[int, float] = {end: 0.0}
        first: dict[int, Span] = {}
        for point in reversed(points[:-1]):
            for span in spans:
                if not span.start <= point < span.end:
                    continue
                noise = 1.0 + _JITTER * self._random.random()
                for stop in points:
                    if point < stop <= span.end and stop in cost:
                        work = tokens * (max(stop - point, _SEGMENT_BLOCKS) + _SEGMENT_BLOCKS)
                        total = outlooks[span.peer].latency(work) * noise + cost[stop]
                        if total < cost.get(point, math.inf):
                            cost[point], first[point] = total, replace(span, start=point, end=stop)
        route: list[Span] = []
        while start in first:
            route.append(first[start])
            start = route[-1].end
        return route

    def _expected_rates(self, spans: Sequence[Span]) -> dict[Any, float]:
        """Returns the expected seconds per unit of work of each server, ignoring its own measurements."""
        announced = {span.peer: rate for span in spans if (rate := span.seconds_per_work)}
        least = max(announced.values(), default=0.0) / _MOST_AHEAD
        announced = {peer: max(rate, least) for peer, rate in announced.items()}
        measured = {peer: self.stats(peer).pacing.seconds_per_work for peer in {span.peer: None for span in spans}}
        known = {peer: rate for peer, rate in measured.items() if rate is not None}
        scale = min((rate / announced[peer] for peer, rate in known.items() if peer in announced), default=1.0)
        expected = {peer: scale * rate for peer, rate in announced.items()}
        fastest = min((known or expected).values(), default=1.0)
        return {peer: max(expected.get(peer, fastest), fastest / _MOST_AHEAD) for peer in measured}
