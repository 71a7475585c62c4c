"""Decides which server to ask for a part of a route, and what to do after a failure. Does no I/O and does not wait.

After a failure, another server is asked if possible. The sender halves a request that all servers, or all without
recent failures, refuse as too large (`TooLarge`). If no server can be reached, the request waits without using up an
attempt (`NoServer`). If two servers refuse a request, the request itself is at fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dist_eval.errors import ModelOutputError, NoCacheError, RefusedError, SwarmError, one_line
from dist_eval.petals.client.chain import MOST_HOPS, ChainAnswer
from dist_eval.petals.client.failures import Failure, classify, may_have_room_later, stated_limit
from dist_eval.petals.client.petals_version import can_chain, can_chain_sessions
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span, covers, without
from dist_eval.tables import format_count

_FIRST_DELAY, _LONGEST_DELAY = 1.0, 5.0
# Seconds until a request of a session whose caches changed chooses again; a lost cache has been recorded by then
_AFTER_CHANGE_SECONDS = 0.01
# Stall timeout if another server holds the blocks: at least this many seconds, or this multiple of the server's recent
# median latency. It doubles with each attempt: if all servers are busy, the first one asked answers first.
_MIN_STALL_SECONDS, _STALL_LATENCIES = 5.0, 10.0
# The same for a server that has not answered yet, by the latency of the slowest other: it has to connect and warm up.
# This doubles with each failure in a row, because it may be a slow one.
_FIRST_STALL_SECONDS = 15.0

_FAILURES_TO_CONFIRM, _PEER_CHARACTERS = 2, 8


class TooLarge(Exception):
    """All servers that hold the blocks accept only smaller requests."""


class NoServer(Exception):
    """No server that holds the blocks can be reached.

    Attributes:
        what: the blocks.
        why: the error of the server that was asked, or a note that there is none.
        since: when the outage began, in seconds of `time.monotonic()`.
        brief: a short form of both, without messages of libraries.
    """

    def __init__(self, what: str, why: str, since: float, brief: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what, self.why, self.since, self.brief = what, why, since, brief


@dataclass(frozen=True)
class RoutePart:
    """A part of a route to be answered."""

    block: int  # where to start
    end: int  # one past the last block of the route
    tokens: int  # tokens of the request, including padding and prompts
    avoided: Sequence[RouteSegment] = ()  # segments to avoid if there is another route; the request is then optional
    prefer_whole: bool = False  # prefer servers that hold all blocks of the route
    in_session: bool = False  # whether servers must keep attention caches of the texts
    # returns the segments whose servers currently hold attention caches of the texts, if any
    cached: Callable[[], Sequence[Span]] = lambda: ()
    largest_message: int | None = None  # tokens of the largest message, if there are several
    rows: int = 1  # texts of the request, if it can be split between texts
    chained: bool = False  # whether servers may pass it on to each other
    has_ids: bool = False  # whether such servers get token ids

    @property
    def line(self) -> Hashable:
        """Requests for which this is equal wait for the same servers."""
        return self.block, self.in_session, self.prefer_whole, (*self.avoided,), (*self.cached(),)

    @property
    def size(self) -> int:
        """Tokens that a server must accept at once."""
        return self.tokens if self.largest_message is None else self.largest_message


@dataclass(frozen=True)
class Choice:
    """The server to ask."""

    segment: Span  # the server, and the blocks that it should run
    stall_timeout: float  # seconds to wait for its answer to a message
    spans: Sequence[Span]  # the online blocks from which the server was chosen
    at: float  # when it was chosen, in seconds of `time.monotonic()`
    has_cache: bool = False  # whether it holds the attention caches
    # the servers that pass the request on, beginning with this one; empty for a request to a single server
    chain: Sequence[Span] = ()
    patience: Sequence[float] = ()  # seconds to wait for each of them and those after it

    # failures that do not show which server is at fault; after one of them the same servers are asked one by one
    doubtful: Collection[Failure] = ()

    @property
    def servers(self) -> Sequence[Span]:
        """The servers that the request passes."""
        return self.chain or [self.segment]

    @property
    def end(self) -> int:
        """One past the last block that these servers run."""
        return self.servers[-1].end


@dataclass
class Attempts:
    """The attempts for one part of a route."""

    router: Router  # chooses servers, and has their statistics
    part: RoutePart  # the part to be answered
    limit: int  # failed attempts after which to give up
    timeout: float  # longest time to wait for a server's answer to a message, in seconds
    _failed: int = 0
    _alone: bool = False  # whether servers are asked one by one, because a chain has failed
    _outage_since: float | None = None
    _room_later: bool = False  # whether a server without room for a session may have room later
    _reasons: list[tuple[str, str]] = field(default_factory=list)  # blocks and peer, and why there was no answer
    _peers: dict[Failure, list[Any]] = field(default_factory=dict)  # the servers that failed in each way

    def choices(self, online: Sequence[Span], now: float, waiting: int = 0) -> Iterator[Choice]:
        """Yields the servers to ask, the best ones first.

        While those are busy, others may be asked that would answer before the best ones could get the last of the
        requests that wait; `waiting` of these are behind this one and wait for the same servers.

        Raises `TooLarge` if the request must be split, `NoServer` if there is no server, and `SwarmError` if there is
        none for an optional request.
        """
        wanted = without(online, self.part.avoided)
        spans: Sequence[Span] = self._taking_it(wanted)
        is_for_halves = self._is_for_halves(wanted, spans, now)
        if self.part.prefer_whole:
            spans = self._holding_all(spans, now)
        cached = self.part.cached()
        has_cache = bool(cached) and {span.peer for span in cached} <= {span.peer for span in spans}
        route = cached if has_cache else self._route_again(spans, now)
        if is_for_halves or (not route and self._covers(wanted)):
            refusing = next(span.peer for span in wanted if not self._takes_it(span))
            raise TooLarge(f"peer {refusing}: {self.router.stats(refusing).refusal}")
        if not route:
            having = "with sessions holds" if self.part.in_session else "holds"
            why = f"no server online {having} it, or a block after it"
            raise self._unreachable(f"block {self.part.block}", why, now, f"block {self.part.block}: {why}")
        yield self._choice(route, spans, now, has_cache=has_cache)
        left, latest = spans, math.inf
        while not has_cache:
            latency, slowest, own = self._outlook(route, spans, now)
            if latency > latest:
                return
            if left is not spans:
                yield self._choice(route, spans, now)
            latest = min(latest, latency + waiting * own)
            left = [span for span in left if span.peer != slowest.peer]
            route = self._route(self._not_banned(left, now), now)
            if not route:
                return

    def _choice(self, route: Sequence[Span], spans: Sequence[Span], now: float, *, has_cache: bool = False) -> Choice:
        chain = route if has_cache and len(route) > 1 else self._chain(route, now)
        # those after the first get their usual time; then the client asks them itself, without that limit
        stalls = [self._stall_timeout(route[0], spans, now), *(self._usual_stall(span) for span in chain[1:])]
        stall_timeouts = [min(self.timeout, stall * 2**self._failed) for stall in stalls]
        patience = [sum(stall_timeouts[place:]) for place in range(len(stall_timeouts))]
        doubtful = [Failure.REFUSED] * (len(chain) > 1 or (bool(chain) and self.part.has_ids))
        doubtful += [Failure.WRONG] * (len(chain) > 1)
        return Choice(route[0], patience[0], spans, now, has_cache, chain, patience, doubtful)

    def answered(self, choice: Choice, now: float, answer: ChainAnswer | None = None) -> None:
        """Bans servers that refused as too large what another one accepted, or that did not pass a request on."""
        computed = [span for span in choice.servers if answer is None or span.end <= answer.end]
        if not choice.has_cache:  # otherwise it got the texts in smaller pieces
            for server in (self.router.stats(span.peer) for span in computed):
                server.largest_answered = max(server.largest_answered, self.part.size)
        for peer in self._peers.pop(Failure.TOO_LARGE, ()):
            self.router.stats(peer).ban.longer(now)
        further = choice.chain[len(computed) :]
        if further and answer is not None and not answer.lacks_prompts:
            self.router.ban_chain([computed[-1].peer, further[0].peer], now)

    def failed(self, choice: Choice, error: Exception, now: float) -> float:
        """Decides what to do after a failed request; returns the seconds until the next attempt.

        Raises `NoServer` if the server could not be reached: another one may be asked at once. Raises an
        `EvaluationError` if the request cannot be answered.
        """
        peer, failure = choice.segment.peer, classify(error)
        what = f"blocks {choice.segment.start}:{choice.segment.end} (peer {peer})"
        if failure is Failure.CHOOSE_AGAIN:
            return _AFTER_CHANGE_SECONDS
        if failure is Failure.TOO_LARGE:
            self._peers.setdefault(failure, []).append(peer)
            self.router.stats(peer).refused_size(self.part.size, stated_limit(error), one_line(error), now)
            return 0.0
        self._alone |= failure in choice.doubtful
        if failure in choice.doubtful:
            self.router.ban_chain([span.peer for span in choice.chain], now)
            self.router.retries += 1
            return 0.0
        is_unreachable = failure in (Failure.UNREACHABLE, Failure.NOT_LISTENING)
        if self.part.avoided and (is_unreachable or failure in (Failure.NO_ANSWER, Failure.NO_CACHE)):
            raise _no_second_opinion(what) from error
        self.router.retries += failure is not Failure.NOT_LISTENING
        if is_unreachable:
            brief = f"blocks {choice.segment.start}:{choice.segment.end} (peer ...{str(peer)[-_PEER_CHARACTERS:]})"
            brief += f": {error}" * (failure is Failure.NOT_LISTENING)
            raise self._unreachable(what, one_line(error), choice.at, brief) from error
        self._reasons.append((what, one_line(error)))
        peers = self._peers.setdefault(failure, [])
        peers.append(peer)
        if failure in (Failure.WRONG, Failure.REFUSED):
            self._outage_since = None  # it was reached
            if self._is_confirmed(peers, choice):
                self._blame_request(failure, peers, error)
        self._failed += 1
        self._room_later |= failure is Failure.NO_CACHE and may_have_room_later(error)
        never_fits = failure is Failure.NO_CACHE and not self._room_later
        others = [span for span in choice.spans if span.peer not in peers]
        if self._failed >= self.limit or (never_fits and not self._covers(others)):
            kind = NoCacheError if failure is Failure.NO_CACHE else SwarmError
            given_up = kind(
                f"got no answer for {what} in {format_count(self._failed, 'attempt')}: {self._reasons[-1][1]}"
            )
            if failure is Failure.NO_CACHE:
                given_up.transient = self._room_later
            raise given_up from error
        return 0.0 if self._failed == 1 else min(_FIRST_DELAY * 2 ** (self._failed - 2), _LONGEST_DELAY)

    def has_route(self, online: Sequence[Span], now: float) -> bool:
        """Whether there is a route of servers that are not banned and accept the request, or a part if it is split."""
        takers = online if self.part.rows > 1 else self._taking_it(online)
        return self._covers(self._not_banned(takers, now))

    def _blame_request(self, failure: Failure, peers: Sequence[Any], error: Exception) -> NoReturn:
        """Raises the error that several servers report about the request; it does not count against them."""
        places: dict[str, list[str]] = {}
        for what, reason in self._reasons:
            places.setdefault(reason, []).append(what)
        messages = "; ".join(f"{' and '.join(dict.fromkeys(whats))}: {reason}" for reason, whats in places.items())
        if len({*peers}) > 1:
            for peer in peers:
                self.router.stats(peer).retract(failure)
        if failure is Failure.REFUSED:
            raise RefusedError(f"servers refused it, {messages}") from error
        raise ModelOutputError(f"servers answered with {messages}") from error

    def _is_for_halves(self, wanted: Sequence[Span], taking: Sequence[Span], now: float) -> bool:
        """Whether all servers that accept the whole request failed recently, and others would accept its halves."""
        if self.part.rows == 1 or len(taking) == len(wanted) or not self.has_route(wanted, now):
            return False
        return not self._covers(self._not_banned(taking, now))

    def _unreachable(self, what: str, why: str, now: float, brief: str) -> NoServer | SwarmError:
        if self.part.avoided:
            return _no_second_opinion(what)
        self._outage_since = now if self._outage_since is None else self._outage_since
        return NoServer(what, why, self._outage_since, brief)

    def _is_confirmed(self, peers: Sequence[Any], choice: Choice) -> bool:
        """Whether several servers failed in the same way, or the only one did so several times."""
        if len(peers) < _FAILURES_TO_CONFIRM:
            return False
        others = [span for span in choice.spans if span.peer not in peers]
        return len({*peers}) > 1 or not self._covers(others)

    def _stall_timeout(self, segment: Span, spans: Sequence[Span], now: float) -> float:
        """Returns seconds to wait for a server, fewer if another one could answer or the request is optional."""
        others = [span for span in self._not_banned(spans, now) if span.peer != segment.peer]
        is_optional = bool(self.part.avoided)
        if not is_optional and not covers(others, segment.start, segment.end):
            return self.timeout
        return self._usual_stall(segment)

    def _outlook(self, route: Sequence[Span], spans: Sequence[Span], now: float) -> tuple[float, Span, float]:
        """Returns the expected latency of a route, and the slowest of the servers to ask with its own seconds."""
        latencies, own = zip(*self.router.seconds(route, spans, self.part.tokens, now), strict=True)
        asked = self._chain(route, now) or route[:1]
        slowest = max(range(len(asked)), key=lambda place: own[place])
        return sum(latencies), asked[slowest], own[slowest]

    def _usual_stall(self, segment: Span) -> float:
        work, server = self.part.tokens * (segment.end - segment.start), self.router.stats(segment.peer)
        if (usual := server.usual_latency(work)) is not None:
            return max(_MIN_STALL_SECONDS, _STALL_LATENCIES * usual)
        if (usual := self.router.slowest_latency(work)) is not None:
            return max(_FIRST_STALL_SECONDS, _STALL_LATENCIES * usual) * server.ban.growth
        return self.timeout

    def _holding_all(self, spans: Sequence[Span], now: float) -> Sequence[Span]:
        whole = [span for span in spans if span.start <= self.part.block and span.end >= self.part.end]
        return self._not_banned(whole, now) or spans

    def _taking_it(self, spans: Sequence[Span]) -> list[Span]:
        return [span for span in spans if self._takes_it(span)]

    def _takes_it(self, span: Span) -> bool:
        return self.part.size <= self.router.stats(span.peer).limit

    def _not_banned(self, spans: Sequence[Span], now: float) -> list[Span]:
        return [span for span in spans if not self.router.stats(span.peer).is_banned(now)]

    def _chain(self, route: Sequence[Span], now: float) -> Sequence[Span]:
        """Returns the first servers of a route that can pass the request on to each other."""
        chain: list[Span] = []
        peers: list[Any] = []
        is_able = can_chain_sessions if self.part.in_session else can_chain
        for span in route[: MOST_HOPS if self.part.chained and not self._alone else 0]:
            can = is_able(span.announced.version) and span.peer not in peers
            if not can or span.dtype != route[0].dtype or not self.router.may_chain([*peers, span.peer], now):
                break
            chain.append(span)
            peers.append(span.peer)
        return chain

    def _route_again(self, spans: Sequence[Span], now: float) -> Sequence[Span]:
        """Chooses a route; after a failure, prefers servers that have answered before, whatever others announce."""
        if self._failed:
            proven = [span for span in spans if self.router.stats(span.peer).pacing.seconds_per_work is not None]
            if again := self._route(self._not_banned(proven, now), now):
                return again
        return self._route(spans, now)

    def _covers(self, spans: Sequence[Span]) -> bool:
        return covers(spans, self.part.block, self.part.end)

    def _route(self, spans: Sequence[Span], now: float) -> Sequence[Span]:
        return self.router.route(spans, self.part.block, self.part.end, self.part.tokens, now)


def _no_second_opinion(what: str) -> SwarmError:
    return SwarmError(f"no second opinion for {what}")
