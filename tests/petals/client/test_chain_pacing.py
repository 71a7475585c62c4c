"""A chain is paced as one server, and each of its servers is known as well as if it had been asked alone."""

from __future__ import annotations

import pytest

from dist_eval.petals.client.chain_pacing import ChainPacing, ChainTicket
from dist_eval.petals.client.pacing import Pacing

WORK = 600  # of 100 tokens, in 1 block of the first server and 5 of the second one
OWN = (0.5, 2.0)  # seconds of each server


def make() -> tuple[ChainPacing, Pacing, list[Pacing]]:
    whole, parts = Pacing(), [Pacing(), Pacing()]
    return ChainPacing(whole, [(parts[0], 1), (parts[1], 5)]), whole, parts


def send(pacing: ChainPacing, now: float) -> ChainTicket:
    ticket = pacing.admit(WORK, now)
    assert isinstance(ticket, ChainTicket)
    return ticket


def answer(pacing: ChainPacing, ticket: ChainTicket, times: list[tuple[float, float]], now: float) -> None:
    pacing.answered(ChainTicket(**{**vars(ticket), "times": times}), now)


def test_each_server_is_measured_by_its_own_time() -> None:
    pacing, whole, parts = make()
    answer(pacing, send(pacing, 10.0), [(10.0, 10.5), (10.5, 12.5)], 12.5)
    assert parts[0].seconds_per_work == pytest.approx(OWN[0] / 100)
    assert parts[1].seconds_per_work == pytest.approx(OWN[1] / 500)
    assert whole.seconds_per_work == pytest.approx(sum(OWN) / WORK)


def test_the_next_request_is_sent_while_the_slowest_server_works_on_the_one_before() -> None:
    pacing, whole, _ = make()
    now, tickets = 10.0, [send(pacing, 10.0)]
    done = [now + OWN[0] + OWN[1]]
    for _ in range(20):  # a request waits for the second server only
        while isinstance(wait := pacing.admit(WORK, now), float):
            if (until := now + wait) < done[0]:
                now = until
                continue
            now = done.pop(0)
            first = now - OWN[1]
            answer(pacing, tickets.pop(0), [(first - OWN[0], first), (first, now)], now)
        assert isinstance(wait, ChainTicket)
        tickets.append(wait)
        done.append(max([now + OWN[0], *done]) + OWN[1])
    assert whole.seconds_per_work == pytest.approx(OWN[1] / WORK, rel=0.05)
    assert len(tickets) == 2


def test_servers_that_a_request_did_not_get_to_are_not_measured_and_have_nothing_to_do() -> None:
    pacing, _, parts = make()
    answer(pacing, send(pacing, 10.0), [(10.0, 10.5)], 12.5)
    assert parts[0].seconds_per_work is not None and parts[1].seconds_per_work is None
    idle = Pacing().latency(500, 13.0, 0.01)
    assert parts[1].latency(500, 13.0, 0.01) == idle
    pacing.failed(send(pacing, 13.0), 14.0)
    assert parts[1].latency(500, 14.0, 0.01) == idle
    pacing.add_waiting(WORK)
    assert parts[1].latency(500, 14.0, 0.01) == 2 * idle
