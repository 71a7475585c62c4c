"""Decides when a server can use another request. Does no I/O except on the state that the ranks of a host share.

A server of Petals works on all its requests in turns, block by block. So they finish together, and the next server
idles until then: a convoy. Each additional request delays those before it; it only needs to arrive before the
server runs out of work. Requests are therefore paced, like packets in BBR (Cardwell et al., 2016, "BBR:
congestion-based congestion control"). Two measurements determine when to send:

- the time between answers of a busy server is its own time for a request;
- the least latency minus that time is the network delay.

They predict when the server will finish everything that it was sent. `chain_pacing` paces servers that are asked as a
chain.
"""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

from dist_eval.petals.client.unanswered import Ticket, Unanswered, UnansweredRequests, settle
from dist_eval.process.shared_state import SharedStates

# Each constant below pays in simulated swarms (tests/petals/client/test_pacing.py): pipelines and replicas, 0 to 1.4 s
# away; servers that work in turns, announce a wrong speed or none, vary in speed, or hang; slow first connections; and
# messages that travel for longer than the measured round trip

# Work that the server should still have when the next request arrives: 0.9 of a request like those that it has, but at
# least 0.15 s and at most 0.3 s. More would hide more of its pauses between blocks, but delay the next server
_EARLY_SHARE, _LEAST_EARLY_SECONDS, _MOST_EARLY_SECONDS = 0.9, 0.15, 0.3

_KEPT = 0.9  # Decay of the moving average of a server's speed, which covers about ten requests

# How much slower than expected an answer that follows no other must be to count as a slower server
_SLOWER = 2.0

# Share of a distant server's own time in its first latency, if it does not announce its speed, and the least share,
# whatever it announces: large messages travel for longer than the measured round trip
_FIRST_SHARE, _LEAST_FIRST_SHARE = 0.5, 0.25

_CORRECTED = 0.5  # Share of an answer's deviation by which the expectation of later answers is corrected

# The least latency is taken over the latest 100 to 200 answers; older ones may reflect other network conditions
_LEAST_OVER = 100

# Time to wait for a server's very first answer before each request beyond the initial ones: one, doubled for a far
# server, and doubled again if it announces its speed
_FIRST_SECONDS = 5.0

_FAR_SECONDS = 0.02  # Round trip from which a server counts as far: it would lose much by waiting for a request

_LATE = 2.0  # Expected final delay of a late answer, as a multiple of its delay so far: servers may hang

_HALF_LIFE_SECONDS = 30.0  # Half-life of the estimated time of an idle server, which may have become faster

_LEAST_SECONDS = 1e-6  # least time of a request


class Pace(Unanswered):
    """Measurements of a server. Times are in seconds of `time.monotonic()`, work is in tokens times blocks."""

    _fields_ = (
        ("first_sent_at", ctypes.c_double),  # when the first of the unanswered requests was sent
        ("done_at", ctypes.c_double),  # when the answer to the last request should arrive
        ("delay", ctypes.c_double),  # sum of all corrections of `done_at`
        ("answered_at", ctypes.c_double),  # when the latest answer arrived
        ("answers_follow", ctypes.c_bool),  # whether an answer arrived while the server had more to do
        ("busy_seconds", ctypes.c_double),  # moving sum of the server's time for requests
        ("busy_work", ctypes.c_double),  # moving sum of their work
        ("least_latency", ctypes.c_double),  # relative to its work, since `latencies` was 0
        ("least_latency_work", ctypes.c_double),  # work of that request
        ("latencies", ctypes.c_uint64),
        ("least_latency_before", ctypes.c_double),  # in the interval before
        ("least_latency_before_work", ctypes.c_double),
        ("round_trip", ctypes.c_double),  # of a message without work
    )


class Outlook(NamedTuple):
    """What another request to a server has to expect."""

    wait: float  # seconds in the network, and until the server has done what it was sent
    rate: float  # seconds of the server for one token through one block

    def latency(self, work: float) -> float:
        """Returns the expected seconds until the answer to a request of this work."""
        return self.wait + self.rate * work


class Pacing(UnansweredRequests[Pace]):
    """The pace of one server."""

    def __init__(self, shared: SharedStates | None = None, name: str = "", period: float = math.inf) -> None:
        super().__init__(Pace, shared, name, period)
        self.announced_seconds_per_work: float | None = None  # for one token through one block, if announced

    @property
    def seconds_per_work(self) -> float | None:
        """Measured seconds for one token through one block; None before the first answer."""
        pace = self._pace
        return pace.busy_seconds / pace.busy_work if pace.busy_work else None

    @property
    def round_trip(self) -> float:
        """Seconds that a message without work and its answer take; 0 if not measured."""
        return self._pace.round_trip

    @property
    def _is_far(self) -> bool:
        return self._pace.round_trip >= _FAR_SECONDS

    def measured_round_trip(self, seconds: float) -> None:
        """Records how long a message without work and its answer take, before the first request."""
        with self._locked():
            self._pace.round_trip = min(seconds, self._pace.round_trip or seconds)

    def admit(self, work: int, now: float) -> Ticket | float:
        """Admits a request, or returns the seconds to wait."""
        with self._locked(now):
            if self._pace.unanswered and (wait := self._opens_at(self.seconds_per_work, now) - now) > 0:
                return wait
            return self._sent(work, now)

    def sent(self, work: int, now: float) -> Ticket:
        """Records a request that is sent without `admit`."""
        with self._locked(now):
            return self._sent(work, now)

    def _sent(self, work: int, now: float) -> Ticket:
        pace, rate = self._pace, self.seconds_per_work
        if not pace.unanswered:
            pace.first_sent_at = pace.done_at = now
        if rate is not None:
            pace.done_at = max(pace.done_at, now + self._network_delay(rate)) + rate * work
        pace.unanswered += 1
        pace.unanswered_work += work
        return Ticket(work, now, pace.done_at - pace.delay, pace.period)

    def answered(self, ticket: Ticket, now: float) -> None:
        """Records an answer."""
        with self._locked(now):
            pace, is_first = self._pace, self.seconds_per_work is None
            if not settle(pace, ticket):
                return
            self._measure(ticket, now)
            if is_first or not pace.unanswered:
                self._correct(now + pace.unanswered_work * (self.seconds_per_work or 0.0) - pace.done_at)
            else:
                self._correct(_CORRECTED * (now - ticket.expected_at - pace.delay))
            pace.answered_at = max(pace.answered_at, now)

    def failed(self, ticket: Ticket, now: float) -> None:
        """Records that a request got no answer; the others are expected earlier by its time."""
        with self._locked(now):
            if settle(self._pace, ticket):
                self._correct(-ticket.work * (self.seconds_per_work or 0.0))

    def outlook(self, now: float, expected: float) -> Outlook:
        """Estimates what another request has to expect after all that was sent.

        `expected` is the expected seconds for one token through one block.
        """
        with self._locked(now):
            pace, rate, rest = self._pace, self.seconds_per_work, 0.0
            if rate is None:
                way, rate = pace.round_trip, expected
                if pace.unanswered:
                    elapsed = now - pace.first_sent_at
                    rate = max(expected, _LATE * (elapsed - way) / pace.unanswered_work)
                    rest = way + rate * pace.unanswered_work - elapsed
            else:
                way = self._network_delay(rate)
                if pace.unanswered:
                    rest = pace.done_at + _LATE * self._late_by(rate, now) - now
                elif not pace.steps:
                    decay = 0.5 ** ((now - pace.answered_at) / _HALF_LIFE_SECONDS)
                    rate, way = max(expected, rate * decay), way * decay
            return Outlook(max(rest, way) + rate * pace.steps, rate)

    def _opens_at(self, rate: float | None, now: float) -> float:
        """Returns when the next request may be sent while others are unanswered."""
        pace = self._pace
        if rate is None:
            return pace.first_sent_at + self._first_wait()
        early = self._network_delay(rate) + _early(rate * pace.unanswered_work / pace.unanswered)
        return pace.done_at + self._late_by(rate, now) - early

    def _first_wait(self) -> float:
        """Returns the delay between the very first request and the next one while there is no answer."""
        pace, most = self._pace, 2 if self._is_far else 1
        wait = pace.round_trip
        if self.announced_seconds_per_work:
            seconds, most = self.announced_seconds_per_work * pace.unanswered_work, 2 * most
            last = seconds / pace.unanswered
            wait = max(wait, last - _early(last)) + seconds - last
        return wait + _FIRST_SECONDS * max(0, pace.unanswered + 1 - most)

    def _late_by(self, rate: float, now: float) -> float:
        """Returns how late the next answer is while requests are unanswered."""
        pace = self._pace
        next_at = pace.done_at - rate * pace.unanswered_work * (1 - 1 / pace.unanswered)
        return max(0.0, now - next_at)

    def _measure(self, ticket: Ticket, now: float) -> None:
        pace, latency = self._pace, now - ticket.sent_at
        seconds, kept = self._server_seconds(ticket, now)
        pace.busy_seconds = pace.busy_seconds * kept + seconds
        pace.busy_work = pace.busy_work * kept + ticket.work
        if pace.latencies == _LEAST_OVER:
            pace.least_latency_before, pace.least_latency_before_work = pace.least_latency, pace.least_latency_work
            pace.latencies = 0
        if not pace.latencies or latency * pace.least_latency_work < pace.least_latency * ticket.work:
            pace.least_latency, pace.least_latency_work = latency, ticket.work
        pace.latencies += 1

    def _server_seconds(self, ticket: Ticket, now: float) -> tuple[float, float]:
        """Returns the server's time for a request, and the share of earlier measurements to keep."""
        pace, rate, latency = self._pace, self.seconds_per_work, now - ticket.sent_at
        if latency <= pace.round_trip:  # it was measured while the host or server was busy
            pace.round_trip = latency / 2
        alone = max(_LEAST_SECONDS, latency - pace.round_trip)
        if rate is None:
            return self._first_seconds(ticket, alone), 0.0
        expected, way = rate * ticket.work, self._network_delay(rate)
        if ticket.sent_at < pace.answered_at:  # the server received this request before it finished another one
            pace.answers_follow = True
            seconds = max(_LEAST_SECONDS, now - pace.answered_at)
            had_to_wait = self._is_far and way > expected and ticket.sent_at + way > pace.answered_at
            return min(seconds, expected) if had_to_wait else seconds, _KEPT
        if alone < expected or not pace.answers_follow:
            return alone, 0.0
        seconds = latency - way
        return seconds if seconds > _SLOWER * expected else expected, _KEPT

    def _first_seconds(self, ticket: Ticket, alone: float) -> float:
        """Returns the server's time for its first request, at most `alone`, the latency without the round trip."""
        if 0.0 < self._pace.round_trip < _FAR_SECONDS:  # large messages also arrive quickly
            return alone
        if self.announced_seconds_per_work:
            return min(alone, max(_LEAST_FIRST_SHARE * alone, _SLOWER * self.announced_seconds_per_work * ticket.work))
        return _FIRST_SHARE * alone if self._is_far else alone

    def _correct(self, seconds: float) -> None:
        self._pace.done_at += seconds
        self._pace.delay += seconds

    def _network_delay(self, rate: float) -> float:
        """Returns the seconds that a request and its answer travel."""
        pace = self._pace
        if not pace.latencies:
            return 0.0
        way = pace.least_latency - rate * pace.least_latency_work
        if pace.least_latency_before_work:
            way = min(way, pace.least_latency_before - rate * pace.least_latency_before_work)
        return max(min(pace.round_trip, pace.least_latency), way)


def _early(seconds: float) -> float:
    """Returns the seconds of work that a server should have left when its next request, of `seconds`, arrives."""
    return min(max(_EARLY_SHARE * seconds, _LEAST_EARLY_SECONDS), _MOST_EARLY_SECONDS)
