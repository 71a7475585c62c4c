"""Decides when a chain of servers can use another request. Does no I/O except on the state that a host's ranks share.

A chain, or a single server that reports its time, gets as many requests as keep its slowest server busy, plus one: the
time of a passage without waiting, divided by the time of that server (Little's law). Both follow from the times that
servers report, without a request's waiting times. The work and time of each server are also recorded in its own pacing,
by which routes are chosen.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dist_eval.petals.client.pacing import Pacing
from dist_eval.petals.client.unanswered import Ticket, Unanswered, UnansweredRequests, settle
from dist_eval.process.shared_state import SharedStates

_LATEST = 100  # Answers over which least times are taken; older ones may reflect other conditions
_LEAST_SECONDS = 1e-3  # least time of a server for a request
_AHEAD = 1.5  # Most times the number of servers by which announced speeds, which may be wrong, raise the first limit


@dataclass(frozen=True)
class ChainTicket(Ticket):
    """A request that was let through to a chain."""

    parts: Sequence[Ticket] = ()  # one for each server
    # for each server that computed it, once answered: when it got the request and finished, and its own seconds
    times: Sequence[tuple[float, float]] = ()
    own: Sequence[float] = ()


class ChainPacing(UnansweredRequests[Unanswered]):
    """The pace of a chain, or of a single server that reports its time.

    `parts` has the pacing of each server, and the number of its blocks. For the others, see `UnansweredRequests`.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Pacing, int]],
        shared: SharedStates | None = None,
        name: str = "",
        period: float = math.inf,
    ) -> None:
        super().__init__(Unanswered, shared, name, period)
        self._parts, self._blocks = parts, sum(blocks for _, blocks in parts)
        self._most: int | None = None  # most unanswered requests; None before the first answer
        self._latest: deque[list[float]] = deque(maxlen=_LATEST)

    def add_steps(self, work: int) -> None:
        """Records work of steps of sessions, of each server."""
        for (pacing, _), share in zip(self._parts, self._shares(work), strict=True):
            pacing.add_steps(share)

    def admit(self, work: int, now: float) -> Ticket | float:
        """Admits a request, or returns infinity: it may ask again after the next answer."""
        with self._locked(now):
            most, unanswered = self._most or self._most_at_first(work), self._pace.unanswered
            if self._most is None:  # all chains of a server together may send it twice as many
                unanswered = max(unanswered, *(pacing.unanswered // 2 for pacing, _ in self._parts))
            if unanswered >= most:
                return math.inf
            self._pace.unanswered += 1
            self._pace.unanswered_work += work
            period = self._pace.period
        shares = zip(self._parts, self._shares(work), strict=True)
        return ChainTicket(work, now, now, period, [pacing.sent(share, now) for (pacing, _), share in shares])

    def answered(self, ticket: Ticket, now: float) -> None:
        """Records an answer; servers without `times` did not compute the request."""
        assert isinstance(ticket, ChainTicket)
        with self._locked(now):
            settle(self._pace, ticket)
        if len(ticket.own) == len(self._parts):
            self._measure(ticket, now)
        for number, ((pacing, _), part) in enumerate(zip(self._parts, ticket.parts, strict=True)):
            if number < len(ticket.times):
                sent_at, done_at = ticket.times[number]
                pacing.answered(replace(part, sent_at=sent_at), done_at)
            else:
                pacing.failed(part, now)

    def failed(self, ticket: Ticket, now: float) -> None:
        """Records that a request got no answer."""
        assert isinstance(ticket, ChainTicket)
        with self._locked(now):
            settle(self._pace, ticket)
        for (pacing, _), part in zip(self._parts, ticket.parts, strict=True):
            pacing.failed(part, now)

    def _most_at_first(self, work: int) -> int:
        """Returns the limit until the first answer, by round trips and announced speeds if all servers announce one."""
        few = len(self._parts) + 1
        rates = [pacing.announced_seconds_per_work for pacing, _ in self._parts]
        own = [rate * share for rate, share in zip(rates, self._shares(work), strict=True) if rate]
        if len(own) < len(self._parts):
            return few
        way = sum(pacing.round_trip for pacing, _ in self._parts)
        return max(few, min(_most_for(way, own), int(_AHEAD * few)))

    def _measure(self, ticket: ChainTicket, now: float) -> None:
        way = max(0.0, now - ticket.sent_at - sum(ticket.own))
        self._latest.append([way, *(seconds / ticket.work for seconds in ticket.own)])
        way, *rates = map(min, zip(*self._latest, strict=True))
        self._most = _most_for(way, [rate * ticket.work for rate in rates])

    def _shares(self, work: int) -> list[int]:
        """Splits work, in tokens times all blocks, into that of each server."""
        return [work * blocks // self._blocks for _, blocks in self._parts]


def _most_for(way: float, own: Sequence[float]) -> int:
    """Returns how many requests keep the slowest server busy, given the seconds in the network and of each server."""
    return math.ceil((way + sum(own)) / max(*own, _LEAST_SECONDS)) + 1
