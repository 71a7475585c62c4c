"""The attempts to have a part of a route answered: decides what to do next. Sends nothing, and does not wait.

`SwarmRequests.send_with_retries` acts on the decisions. Each is one of the classes below:

- `Send` to a server;
- `WaitForServers`, as none can be reached: this costs no attempt;
- `Retry` after a delay, with another server if there is one;
- `AskAnother` server at once: this one takes smaller requests only;
- `Split` the request in halves: all servers, or all that did not fail recently, take smaller ones only;
- `Skip` it: it was optional;
- `GiveUp`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dist_eval.data.answers import RouteSegment
from dist_eval.errors import EvaluationError, ModelOutputError, NoCacheError, RefusedError, SwarmError, one_line
from dist_eval.swarm.failures import Failure, classify, stated_limit
from dist_eval.swarm.router import Router
from dist_eval.swarm.routes import Span, without
from dist_eval.tables import format_count

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 5.0
# Stall timeout where another server holds the blocks: at least this many seconds, or this multiple of the server's
# recent median latency. It doubles with each attempt: where all servers are busy, the first one asked answers first.
_MIN_STALL_SECONDS, _STALL_LATENCIES = 5.0, 10.0

_FAILURES_TO_CONFIRM, _RECENT_LATENCIES = 2, 20


class TooLarge(Exception):
    """All servers that hold the blocks accept smaller requests only."""


@dataclass(frozen=True)
class RoutePart:
    """A part of a route that is to be answered."""

    block: int  # where to start
    end: int  # one past the last block of the route
    tokens: int  # of the request, counting padding and prompts
    avoided: Sequence[RouteSegment] = ()  # segments to avoid if there is another route; the request is then optional
    prefer_whole: bool = False  # prefer servers that hold all blocks of the route
    in_session: bool = False  # whether servers are to keep attention caches of the texts
    # returns the segment to ask, whose server holds attention caches of the texts at the moment, if any
    cached: Callable[[], Span | None] = lambda: None
    messages: int = 1  # in which any other server is sent the texts from their beginning, one after the other
    largest_message: int | None = None  # tokens of the largest of these, if there are several
    rows: int = 1  # texts of the request, if it can be split between them

    @property
    def size(self) -> int:
        """Tokens that a server must take at once."""
        return self.tokens if self.largest_message is None else self.largest_message


@dataclass(frozen=True)
class Send:
    """Send the request."""

    segment: Span  # the server, and the blocks that it should run
    stall_timeout: float  # seconds to wait for its answer
    spans: Sequence[Span]  # the blocks that were online, from which the server was chosen
    at: float  # when it was chosen, in seconds of `time.monotonic()`
    has_cache: bool = False  # whether it is the one that holds attention caches


@dataclass(frozen=True)
class WaitForServers:
    """Wait until there is a route of servers that can be reached."""

    what: str  # the blocks that have no server
    why: str  # the error of the server that was asked, or that there is none
    since: float  # when the outage began, in seconds of `time.monotonic()`


@dataclass(frozen=True)
class Retry:
    """Choose a server again, after some seconds."""

    delay: float


@dataclass(frozen=True)
class AskAnother:
    """Choose a server again, at once: nothing failed, but this one takes smaller requests only."""


@dataclass(frozen=True)
class Split:
    """Split the request in halves: it is too large for the servers that can be asked."""

    error: TooLarge


@dataclass(frozen=True)
class Skip:
    """Do without an optional request: it is not worth waiting for."""

    error: SwarmError


@dataclass(frozen=True)
class GiveUp:
    """Raise an error."""

    error: EvaluationError  # the error
    # the server of each wrong answer that does not count against it, because others gave one too
    cleared_peers: Sequence[Any] = ()


Decision = Send | WaitForServers | Retry | AskAnother | Split | Skip | GiveUp


@dataclass
class Attempts:
    """The attempts for one part of a route."""

    router: Router  # chooses servers, and knows their statistics
    part: RoutePart  # what is to be answered
    limit: int  # failed attempts after which to give up
    timeout: float  # longest time to wait for a server's answer, in seconds
    _failed: int = 0
    _outage_since: float | None = None
    _messages: list[str] = field(default_factory=list)
    _peers: dict[Failure, list[Any]] = field(default_factory=dict)  # The servers that failed in each way

    def next(self, online: Sequence[Span], now: float) -> Send | WaitForServers | Split | Skip:
        """Decides whom to ask."""
        wanted = without(online, self.part.avoided)
        spans: Sequence[Span] = self._taking_it(wanted)
        is_for_halves = self._is_for_halves(wanted, spans, now)
        if self.part.prefer_whole:
            spans = self._holding_all(spans, now)
        cached = self.part.cached()
        has_cache = cached is not None and any(span.peer == cached.peer for span in spans)
        segment = cached if has_cache else self._route_again(spans, now)
        if is_for_halves or (segment is None and self._route(wanted, now) is not None):
            refusing = next(span.peer for span in wanted if not self._takes_it(span))
            return Split(TooLarge(f"peer {refusing}: {self.router.stats(refusing).refusal}"))
        if segment is None:
            having = "with sessions holds" if self.part.in_session else "holds"
            why = f"no server online {having} it, or a block after it"
            return self._unreachable(f"block {self.part.block}", why, now)
        messages = 1 if has_cache else self.part.messages
        stall_timeout = self._stall_timeout(segment, spans, now) * 2**self._failed * messages
        return Send(segment, min(self.timeout, stall_timeout), spans, now, has_cache)

    def answered(self, sent: Send, now: float) -> None:
        """Bans the servers that refused as too large what another one took."""
        server = self.router.stats(sent.segment.peer)
        if not sent.has_cache:  # it took it in smaller pieces
            server.largest_answered = max(server.largest_answered, self.part.size)
        for peer in self._peers.pop(Failure.TOO_LARGE, ()):
            self.router.stats(peer).ban_longer(now)

    def after(self, sent: Send, error: Exception, now: float) -> WaitForServers | Retry | AskAnother | Skip | GiveUp:
        """Decides what to do about a request that failed."""
        segment, failure = sent.segment, classify(error)
        what = f"blocks {segment.start}:{segment.end} (peer {segment.peer})"
        if failure is Failure.TOO_LARGE:
            self._peers.setdefault(failure, []).append(segment.peer)
            server = self.router.stats(segment.peer)
            server.refused_size(self.part.size, stated_limit(error), one_line(error), now)
            return AskAnother()
        if failure is Failure.UNREACHABLE:
            return self._unreachable(what, one_line(error), sent.at)
        if self.part.avoided and failure is Failure.NO_ANSWER:
            return self._no_second_opinion(what)
        self._messages.append(f"{what}: {one_line(error)}")
        peers = self._peers.setdefault(failure, [])
        peers.append(segment.peer)
        if failure in (Failure.WRONG, Failure.REFUSED):
            self._outage_since = None  # it was reached
        if failure in (Failure.WRONG, Failure.REFUSED) and self._is_confirmed(peers, sent):
            messages = "; ".join(self._messages)
            if failure is Failure.REFUSED:
                return GiveUp(RefusedError(f"servers refused it, {messages}"))
            cleared_peers = peers if len({*peers}) > 1 else ()
            return GiveUp(ModelOutputError(f"servers answered with {messages}"), cleared_peers)
        self._failed += 1
        if self._failed >= self.limit:
            kind = NoCacheError if failure is Failure.NO_CACHE else SwarmError
            return GiveUp(
                kind(f"got no answer for {what} in {format_count(self._failed, 'attempt')}: {self._messages[-1]}")
            )
        return Retry(0.0 if self._failed == 1 else min(_FIRST_DELAY * 2 ** (self._failed - 2), _LONGEST_DELAY))

    def has_route(self, online: Sequence[Span], now: float) -> bool:
        """Whether there is a route of servers that are not banned, and take the request or, if it is split, a part."""
        takers = online if self.part.rows > 1 else self._taking_it(online)
        return self._route(self._not_banned(takers, now), now) is not None

    def _is_for_halves(self, wanted: Sequence[Span], taking: Sequence[Span], now: float) -> bool:
        """Whether all servers that take the request at once have failed recently, and others would take its halves."""
        if self.part.rows == 1 or len(taking) == len(wanted) or not self.has_route(wanted, now):
            return False
        return self._route(self._not_banned(taking, now), now) is None

    def _unreachable(self, what: str, why: str, now: float) -> WaitForServers | Skip:
        if self.part.avoided:
            return self._no_second_opinion(what)
        self._outage_since = now if self._outage_since is None else self._outage_since
        return WaitForServers(what, why, self._outage_since)

    def _no_second_opinion(self, what: str) -> Skip:
        return Skip(SwarmError(f"no second opinion for {what}"))

    def _is_confirmed(self, peers: Sequence[Any], sent: Send) -> bool:
        """Whether several servers failed in the same way, or one several times and there is no other."""
        if len(peers) < _FAILURES_TO_CONFIRM:
            return False
        others = [span for span in sent.spans if span.peer not in peers]
        return len({*peers}) > 1 or self._route(others, sent.at) is None

    def _stall_timeout(self, segment: Span, spans: Sequence[Span], now: float) -> float:
        """Returns seconds to wait for a server: fewer if another one could answer, or the request is optional."""
        latencies = list(self.router.stats(segment.peer).latencies)[-_RECENT_LATENCIES:]
        if not latencies:
            return self.timeout
        others = [span for span in self._not_banned(spans, now) if span.peer != segment.peer]
        is_optional = bool(self.part.avoided)
        if not is_optional and self.router.next_segment(others, segment.start, segment.end, 1, now) is None:
            return self.timeout
        return max(_MIN_STALL_SECONDS, _STALL_LATENCIES * statistics.median(latencies))

    def _holding_all(self, spans: Sequence[Span], now: float) -> Sequence[Span]:
        whole = [span for span in spans if span.start <= self.part.block and span.end >= self.part.end]
        return self._not_banned(whole, now) or spans

    def _taking_it(self, spans: Sequence[Span]) -> list[Span]:
        return [span for span in spans if self._takes_it(span)]

    def _takes_it(self, span: Span) -> bool:
        return self.part.size <= self.router.stats(span.peer).limit

    def _not_banned(self, spans: Sequence[Span], now: float) -> list[Span]:
        return [span for span in spans if not self.router.stats(span.peer).is_banned(now)]

    def _route_again(self, spans: Sequence[Span], now: float) -> Span | None:
        """Chooses a server; after a failure one that has answered before, whatever speed others announce."""
        if self._failed:
            proven = [span for span in spans if self.router.stats(span.peer).pacing.seconds_per_work is not None]
            if (again := self._route(self._not_banned(proven, now), now)) is not None:
                return again
        return self._route(spans, now)

    def _route(self, spans: Sequence[Span], now: float) -> Span | None:
        return self.router.next_segment(spans, self.part.block, self.part.end, self.part.tokens, now)
