"""When a chain of servers can use a further request. Does no I/O but for the state that the ranks of a host share.

Seen from here, a chain is one server: the time between its answers is that of its slowest one, and the rest of the
latency is the way. What each server is sent, and how long it took, is recorded for it, too, because routes are chosen
by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dist_eval.petals.client.pacing import Pacing, Ticket


@dataclass(frozen=True)
class ChainTicket(Ticket):
    """A request that was let through to a chain."""

    parts: Sequence[Ticket] = ()  # of each server
    # when each server that computed it got it, and was done with it; once it is answered
    times: Sequence[tuple[float, float]] = ()


class ChainPacing:
    """The pace of a chain; an `Admission`.

    Args:
        whole: that of the chain.
        parts: that of each of its servers, and the number of its blocks.
    """

    def __init__(self, whole: Pacing, parts: Sequence[tuple[Pacing, int]]) -> None:
        self._whole, self._parts = whole, parts
        self._blocks = sum(blocks for _, blocks in parts)
        if all(pacing.round_trip for pacing, _ in parts):
            whole.measured_round_trip(sum(pacing.round_trip for pacing, _ in parts))
        announced = [(pacing.announced_seconds_per_work or 0.0) * blocks for pacing, blocks in parts]
        if all(announced):
            whole.announced_seconds_per_work = max(announced) / self._blocks

    def add_waiting(self, work: int) -> None:
        """See `Admission`."""
        self._whole.add_waiting(work)
        for (pacing, _), share in zip(self._parts, self._shares(work), strict=True):
            pacing.add_waiting(share)

    def admit(self, work: int, now: float) -> Ticket | float:
        """See `Admission`."""
        ticket = self._whole.admit(work, now)
        if not isinstance(ticket, Ticket):
            return ticket
        shares = zip(self._parts, self._shares(work), strict=True)
        parts = [pacing.sent(share, now) for (pacing, _), share in shares]
        return ChainTicket(ticket.work, ticket.sent_at, ticket.expected_at, ticket.period, parts)

    def answered(self, ticket: Ticket, now: float) -> None:
        """Records an answer; servers without `times` did not compute the request."""
        assert isinstance(ticket, ChainTicket)
        self._whole.answered(ticket, now)
        for number, ((pacing, _), part) in enumerate(zip(self._parts, ticket.parts, strict=True)):
            if number < len(ticket.times):
                sent_at, done_at = ticket.times[number]
                pacing.answered(replace(part, sent_at=sent_at), done_at)
            else:
                pacing.failed(part, now)

    def failed(self, ticket: Ticket, now: float) -> None:
        """Records that a request got no answer."""
        assert isinstance(ticket, ChainTicket)
        self._whole.failed(ticket, now)
        for (pacing, _), part in zip(self._parts, ticket.parts, strict=True):
            pacing.failed(part, now)

    def _shares(self, work: int) -> list[int]:
        """Returns the work of each server; `work` is so many tokens times all blocks."""
        return [work * blocks // self._blocks for _, blocks in self._parts]
