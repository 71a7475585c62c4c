"""When a server can use a further request. Does no I/O but for the state that the ranks of a host share.

A Petals server works on all the requests that it holds by turns, block by block. So they leave it together, and the
next server has nothing to do until then: a convoy. Each further request that a server holds delays those before it.
It is enough that the next one arrives shortly before the server is done: requests are paced, as packets are on a
network path in BBR (Cardwell et al., 2016, "BBR: congestion-based congestion control"). Two measurements tell when:

- the time between answers, while the server has more to do, is its own time for a request;
- the least latency, less that time, is the time on the way.

So the time is known when the server will be done with everything that it was sent. Ranks of one host share this state,
so that all their requests to a server are paced as one.
"""

from __future__ import annotations

import contextlib
import ctypes
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dist_eval.process.shared_state import SharedStates

_EARLY = 0.9
"""How long before the server is done the next request should arrive, as a share of the server's time for it."""

_AVERAGED = 10.0
"""Number of requests that the moving average of a server's speed covers."""

_OUTLIER = 10.0
"""Most by which one measurement may deviate from the average: a server that hung once is not slow from then on."""

_CORRECTED = 0.5
"""Share of a deviation from the expected time of an answer that is expected of the next ones, too."""

_LEAST_OVER = 100
"""The least latency is that of the latest 100 to 200 answers; older ones may reflect other network conditions."""

_FIRST_SECONDS = 5.0
"""Time to wait for a server's very first answer before a third request is sent."""

_LATE = 2.0
"""How long a server's first answer is expected to take in all, as a multiple of the time that it has taken by now."""

_HALF_LIFE_SECONDS = 30.0
"""Half-life of the estimated time of an idle server: it may have become faster."""


class Pace(ctypes.Structure):
    """What is known of a server. Times are in seconds of `time.monotonic()`, work is in tokens times blocks."""

    _fields_ = (
        ("waiting", ctypes.c_int64),  # work that may not be sent yet
        ("sent", ctypes.c_uint64),  # requests
        ("first_sent_at", ctypes.c_double),
        ("first_work", ctypes.c_uint64),  # of the requests before the first answer
        ("done_at", ctypes.c_double),  # when the answer to the latest of them should be here
        ("delay", ctypes.c_double),  # sum of all corrections of `done_at`
        ("answered_at", ctypes.c_double),  # when the latest answer came
        ("answers_follow", ctypes.c_bool),  # whether the next two are of answers while it had more to do
        ("busy_seconds", ctypes.c_double),  # moving sum of the server's time for a request
        ("busy_work", ctypes.c_double),  # moving sum of their work
        ("latency", ctypes.c_double),  # the least one since `latencies` was 0
        ("latency_work", ctypes.c_double),  # work of the request that had it
        ("latencies", ctypes.c_uint64),
        ("latency_before", ctypes.c_double),  # the least one before that
        ("latency_before_work", ctypes.c_double),
        ("round_trip", ctypes.c_double),  # of a message without work
    )


@dataclass(frozen=True)
class Ticket:
    """A request that was let through.

    Attributes:
        number: how many were before it, counting it.
        work: tokens times blocks.
        sent_at: in seconds of `time.monotonic()`.
        expected_at: when its answer should be here, less the corrections until it was sent.
    """

    number: int
    work: int
    sent_at: float
    expected_at: float


class Pacing:
    """The pace of one server.

    Args:
        shared: shares it with the other ranks of this host.
        name: of the server, in `shared`.
    """

    def __init__(self, shared: SharedStates | None = None, name: str = "") -> None:
        self._pace = shared.open(name, Pace) if shared else Pace()
        self._shared = shared

    @property
    def is_used(self) -> bool:
        """Whether any request was sent, or waits."""
        return bool(self._pace.sent or self._pace.waiting)

    @property
    def waiting(self) -> int:
        """Work that may not be sent yet, in tokens times blocks."""
        return self._pace.waiting

    @property
    def seconds_per_work(self) -> float | None:
        """Measured seconds for one token through one block; None before the first answer."""
        pace = self._pace
        return pace.busy_seconds / pace.busy_work if pace.busy_work else None

    def measured_round_trip(self, seconds: float) -> None:
        """Records how long a message without work and its answer take, before the first request."""
        with self._locked():
            self._pace.round_trip = min(seconds, self._pace.round_trip or seconds)

    def add_waiting(self, work: int) -> None:
        """Records work that waits for the server; a negative number is work that does so no longer."""
        with self._locked():
            self._pace.waiting += work

    def admit(self, work: int, now: float) -> Ticket | float:
        """Lets a request through, or not yet.

        Args:
            work: tokens times blocks.
            now: in seconds of `time.monotonic()`.

        Returns:
            What `answered` needs, if the request may be sent now; otherwise the seconds until it probably may.
        """
        with self._locked():
            pace, rate = self._pace, self.seconds_per_work
            if rate is None:
                wait, done_at = pace.done_at - now, now + (_FIRST_SECONDS if pace.sent else pace.round_trip)
            else:
                way, seconds = self._way(rate), rate * work
                wait, done_at = pace.done_at - way - _EARLY * seconds - now, max(pace.done_at, now + way) + seconds
            if wait > 0:
                return wait
            if rate is None:
                pace.first_sent_at = pace.first_sent_at if pace.first_work else now
                pace.first_work += work
            pace.sent += 1
            pace.done_at = done_at
            return Ticket(pace.sent, work, now, done_at - pace.delay)

    def answered(self, ticket: Ticket, now: float) -> None:
        """Records an answer.

        Args:
            ticket: of the request.
            now: in seconds of `time.monotonic()`.
        """
        with self._locked():
            pace, is_first = self._pace, self.seconds_per_work is None
            self._measure(ticket, now)
            after_it = pace.sent - ticket.number
            if is_first or not after_it:
                self._correct(now + after_it * ticket.work * (self.seconds_per_work or 0.0) - pace.done_at)
            else:
                self._correct(_CORRECTED * (now - ticket.expected_at - pace.delay))
            pace.answered_at = now

    def failed(self, now: float) -> None:
        """Records that a request got no answer: nothing more is expected of the server."""
        with self._locked():
            self._correct(now - self._pace.done_at)
            self._pace.first_work = 0

    def latency(self, work: float, now: float, expected: float) -> float:
        """Estimates how long the answer to a further request would take, behind all that was sent or waits.

        A server that has not answered yet is taken for as fast as expected until its first answer is late; from then on
        that answer is expected to take twice as long as it has by now.

        Args:
            work: tokens times blocks.
            now: in seconds of `time.monotonic()`.
            expected: seconds per unit of work to expect without measurements.
        """
        pace, rate = self._pace, self.seconds_per_work
        if rate is None:
            way, done_at, rate = pace.round_trip, now, expected
            if pace.first_work:
                rate = max(expected, _LATE * (now - pace.first_sent_at - way) / pace.first_work)
                done_at = pace.first_sent_at + way + rate * pace.first_work
        else:
            way, done_at = self._way(rate), pace.done_at
            if now > done_at and not pace.waiting:
                decay = 0.5 ** ((now - done_at) / _HALF_LIFE_SECONDS)
                rate, way = max(expected, rate * decay), way * decay
        return max(done_at - now, way) + rate * (pace.waiting + work)

    def _measure(self, ticket: Ticket, now: float) -> None:
        pace, latency = self._pace, now - ticket.sent_at
        follows = ticket.sent_at < pace.answered_at
        if follows or not pace.answers_follow:
            # until answers follow each other, all the way that a message without work does not have counts as work
            fade = 1.0 - 1.0 / _AVERAGED if follows else 0.0
            seconds = now - pace.answered_at if follows else max(latency / _OUTLIER, latency - pace.round_trip)
            if follows and (rate := self.seconds_per_work):
                seconds = min(seconds, _OUTLIER * rate * ticket.work)
            pace.busy_seconds = pace.busy_seconds * fade + seconds
            pace.busy_work = pace.busy_work * fade + ticket.work
            pace.answers_follow = follows
        if pace.latencies == _LEAST_OVER:
            pace.latency_before, pace.latency_before_work, pace.latencies = pace.latency, pace.latency_work, 0
        if not pace.latencies or latency * pace.latency_work < pace.latency * ticket.work:
            pace.latency, pace.latency_work = latency, ticket.work
        pace.latencies += 1

    def _correct(self, seconds: float) -> None:
        self._pace.done_at += seconds
        self._pace.delay += seconds

    def _way(self, rate: float) -> float:
        """Returns the seconds that a request and its answer are on the way."""
        pace = self._pace
        if not pace.latencies:
            return 0.0
        way = pace.latency - rate * pace.latency_work
        if pace.latency_before_work:
            way = min(way, pace.latency_before - rate * pace.latency_before_work)
        return max(min(pace.round_trip, pace.latency), way)

    def _locked(self) -> AbstractContextManager[None]:
        return self._shared.locked() if self._shared else contextlib.nullcontext()
