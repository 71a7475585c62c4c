"""Requests that are unanswered: counted until they are settled, or forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dist_eval.swarm.pace import Pace, Ticket, forget, settle

PERIOD = 100.0


def send(pace: Pace, work: int, now: float) -> Ticket:
    forget(pace, now, PERIOD)
    pace.unanswered += 1
    pace.unanswered_work += work
    return Ticket(work, now, now, period=pace.period)


def test_a_request_counts_until_a_whole_period_later() -> None:
    pace = Pace()
    early, late = send(pace, 3, 1.0), send(pace, 5, 90.0)
    forget(pace, 150.0, PERIOD)
    assert (pace.unanswered, pace.unanswered_work) == (2, 8)
    assert settle(pace, late) and (pace.unanswered, pace.unanswered_work) == (1, 3)
    forget(pace, 250.0, PERIOD)
    assert (pace.unanswered, pace.unanswered_work) == (0, 0)
    assert not settle(pace, early) and (pace.unanswered, pace.unanswered_work) == (0, 0)


def test_after_a_long_pause_all_is_forgotten() -> None:
    pace = Pace()
    ticket = send(pace, 3, 1.0)
    pace.waiting = 7
    forget(pace, 1000.0, PERIOD)
    assert (pace.unanswered, pace.unanswered_work, pace.waiting) == (0, 0, 0)
    assert not settle(pace, ticket)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 150.0), st.integers(1, 1000)), max_size=50))
def test_what_is_counted_is_what_was_sent_lately_and_not_settled(events: list[tuple[bool, float, int]]) -> None:
    pace, now, open_tickets = Pace(), 1.0, list[Ticket]()
    for is_sent, pause, work in events:
        now += pause
        if is_sent or not open_tickets:
            open_tickets.append(send(pace, work, now))
        else:
            forget(pace, now, PERIOD)
            ticket = open_tickets.pop(work % len(open_tickets))
            assert settle(pace, ticket) or now - ticket.sent_at >= PERIOD
        counted = [ticket.work for ticket in open_tickets if ticket.period >= pace.period - 1]
        assert (pace.unanswered, pace.unanswered_work) == (len(counted), sum(counted))
