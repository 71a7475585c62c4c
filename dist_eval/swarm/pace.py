"""What the ranks of a host know of a server, in memory that they share, and its requests that are unanswered."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True)
class Ticket:
    """A request that was let through."""

    work: int  # tokens times blocks
    sent_at: float  # in seconds of `time.monotonic()`
    expected_at: float  # when its answer should be here, less the corrections until it was sent
    seconds: float = 0.0  # the server's time for it, as expected; 0 if unknown
    ahead: float = 0.0  # seconds of work that the server should still have when it arrives
    period: int = 0  # in which it was sent


class Pace(ctypes.Structure):
    """What is known of a server. Times are in seconds of `time.monotonic()`, work is in tokens times blocks."""

    _fields_ = (
        ("waiting", ctypes.c_int64),  # work that may not be sent yet, or is in steps of sessions
        ("unanswered", ctypes.c_int64),  # requests
        ("unanswered_work", ctypes.c_int64),
        ("period", ctypes.c_int64),  # number of periods so far (see `forget`)
        ("period_began", ctypes.c_double),
        ("unanswered_before", ctypes.c_int64),  # of them, those sent in the period before
        ("unanswered_work_before", ctypes.c_int64),
        ("first_sent_at", ctypes.c_double),  # the first request since nothing was unanswered
        ("done_at", ctypes.c_double),  # when the answer to the last request should be here
        ("delay", ctypes.c_double),  # sum of all corrections of `done_at`
        ("answered_at", ctypes.c_double),  # when the latest answer came
        ("answers_follow", ctypes.c_bool),  # whether an answer came while the server had more to do
        ("busy_seconds", ctypes.c_double),  # moving sum of the server's time for a request
        ("busy_work", ctypes.c_double),  # moving sum of their work
        ("least_latency", ctypes.c_double),  # for its work, since `latencies` was 0
        ("least_latency_work", ctypes.c_double),  # of the request that had it
        ("latencies", ctypes.c_uint64),
        ("least_latency_before", ctypes.c_double),  # before that
        ("least_latency_before_work", ctypes.c_double),
        ("round_trip", ctypes.c_double),  # of a message without work
    )


def settle(pace: Pace, ticket: Ticket) -> bool:
    """Removes a request from those that are unanswered; returns whether it was among them, not forgotten."""
    if ticket.period < pace.period - 1:
        return False
    if ticket.period < pace.period:
        pace.unanswered_before -= 1
        pace.unanswered_work_before -= ticket.work
    pace.unanswered -= 1
    pace.unanswered_work -= ticket.work
    return True


def forget(pace: Pace, now: float, period: float) -> None:
    """Begins a new period if it is time; after a long pause two of them, because all requests are older.

    What was sent before the period before, and what waited, is not counted any more.
    """
    pace.period_began = pace.period_began or now
    over = min(2, int((now - pace.period_began) // period))
    for _ in range(over):
        pace.unanswered -= pace.unanswered_before
        pace.unanswered_work -= pace.unanswered_work_before
        pace.unanswered_before, pace.unanswered_work_before = pace.unanswered, pace.unanswered_work
        pace.period, pace.period_began, pace.waiting = pace.period + 1, now, 0
