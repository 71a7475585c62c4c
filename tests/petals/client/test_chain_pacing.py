"""A chain holds what keeps its slowest server busy; each server is known as well as if it had been asked alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_swarm import TOKENS, Server, simulate

from dist_eval.petals.client.chain_pacing import ChainPacing, ChainTicket
from dist_eval.petals.client.pacing import Pacing
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span
from dist_eval.process.shared_state import SharedStates

WORK = 600  # of 100 tokens, in 1 block of the first server and 5 of the second one
OWN = (0.5, 2.0)  # seconds of each server


def make() -> tuple[ChainPacing, list[Pacing]]:
    parts = [Pacing(), Pacing()]
    return ChainPacing([(parts[0], 1), (parts[1], 5)]), parts


def send(pacing: ChainPacing, now: float) -> ChainTicket:
    ticket = pacing.admit(WORK, now)
    assert isinstance(ticket, ChainTicket)
    return ticket


def answer(
    pacing: ChainPacing, ticket: ChainTicket, times: list[tuple[float, float]], now: float, own: tuple[float, ...] = ()
) -> None:
    pacing.answered(ChainTicket(**{**vars(ticket), "times": times, "own": own}), now)


def held(pacing: ChainPacing, now: float) -> int:
    """Sends all that the chain may hold; returns their number."""
    count = 0
    while isinstance(pacing.admit(WORK, now), ChainTicket):
        count += 1
    return count


def test_each_server_is_measured_by_its_own_time() -> None:
    pacing, parts = make()
    answer(pacing, send(pacing, 10.0), [(10.0, 10.5), (10.5, 12.5)], 12.5)
    assert parts[0].seconds_per_work == pytest.approx(OWN[0] / 100)
    assert parts[1].seconds_per_work == pytest.approx(OWN[1] / 500)


def test_before_an_answer_it_holds_one_request_more_than_servers() -> None:
    assert held(make()[0], 10.0) == 3


@pytest.mark.parametrize(
    ("speeds", "round_trip", "most"),
    [
        ((OWN[0], OWN[1]), 0.0, 3),
        ((OWN[0], OWN[1]), 0.8, 4),  # a passage of 4.1 s, of which the slowest server takes 2
        ((OWN[0], OWN[1] / 100), 9.0, 4),  # at most half as much again, because servers may announce anything
        ((None, OWN[1]), 9.0, 3),
    ],
)
def test_before_an_answer_announced_speeds_say_what_a_distant_chain_holds(
    speeds: tuple[float | None, float], round_trip: float, most: int
) -> None:
    pacing, parts = make()
    for part, seconds, work in zip(parts, speeds, (100, 500), strict=True):
        part.announced_seconds_per_work = None if seconds is None else seconds / work
        part.measured_round_trip(round_trip)
    assert held(pacing, 10.0) == most


@given(own=st.tuples(st.floats(0.01, 5.0), st.floats(0.01, 5.0)), way=st.floats(0.0, 10.0))
def test_it_holds_as_many_requests_as_are_done_during_a_passage_and_one_more(
    own: tuple[float, float], way: float
) -> None:
    pacing, _ = make()
    passage = sum(own) + way
    answer(pacing, send(pacing, 10.0), [(10.0, 10.0 + own[0]), (10.0 + own[0], 10.0 + passage)], 10.0 + passage, own)
    assert held(pacing, 100.0) - 1 == pytest.approx(passage / max(own), abs=1.001)
    assert held(pacing, 100.0) == 0


def test_what_requests_wait_at_a_server_does_not_count_as_a_longer_passage() -> None:
    pacing, _ = make()
    for waited in (0.0, 6.0, 8.0):
        now = 10.0 + sum(OWN) + waited
        answer(pacing, send(pacing, 10.0), [(10.0, 10.5), (10.5, now)], now, (OWN[0], OWN[1] + waited))
    assert held(pacing, 100.0) == math.ceil(sum(OWN) / OWN[1]) + 1


def test_ranks_share_what_a_chain_holds(tmp_path: Path) -> None:
    one, other = (ChainPacing([(Pacing(), 1), (Pacing(), 5)], SharedStates(tmp_path), "chain") for _ in range(2))
    tickets = [send(one, 10.0), send(one, 10.0), send(one, 10.0)]
    assert held(other, 10.0) == 0
    one.failed(tickets[0], 11.0)
    assert held(other, 11.0) == 1


def test_servers_that_a_request_did_not_get_to_are_not_measured_and_have_nothing_to_do() -> None:
    pacing, parts = make()
    answer(pacing, send(pacing, 10.0), [(10.0, 10.5)], 12.5, OWN[:1])
    assert parts[0].seconds_per_work is not None and parts[1].seconds_per_work is None
    idle = Pacing().outlook(13.0, 0.01).latency(500)
    assert parts[1].outlook(13.0, 0.01).latency(500) == idle
    pacing.failed(send(pacing, 13.0), 14.0)
    assert parts[1].outlook(14.0, 0.01).latency(500) == idle
    pacing.add_steps(WORK)
    assert parts[1].outlook(14.0, 0.01).latency(500) == 2 * idle


SLOW = 0.2
"""Seconds of the slowest stage of a pipeline for a batch, with all its replicas."""

EQUAL = ((SLOW,), (SLOW,), (SLOW,), (SLOW,))
UNEQUAL = ((SLOW / 3,), (SLOW,), (SLOW / 3,), (SLOW / 3,))


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("announced", [1.0, 4.0])
@pytest.mark.parametrize("way", [0.0, 0.1])
@pytest.mark.parametrize(
    ("stages", "batches", "least"),
    [
        (EQUAL, 20, 0.9),
        (UNEQUAL, 20, 0.9),
        (((SLOW,), (1.5 * SLOW, 3 * SLOW)), 20, 0.8),
        (((SLOW,), (1.5 * SLOW, 3 * SLOW)), 50, 0.9),
        (((SLOW, 5 * SLOW),), 20, 0.8),
        (((SLOW, 5 * SLOW),), 50, 0.9),
        (((SLOW, SLOW),) * 4, 20, 0.9),
        (((SLOW / 3,), (SLOW, SLOW, SLOW), (SLOW / 3,)), 50, 0.8),
        (((SLOW, 2 * SLOW), (SLOW, 2 * SLOW)), 50, 0.8),
    ],
)
def test_chains_of_replicas_that_announce_the_same_speed_are_busy(
    stages: tuple[tuple[float, ...], ...],
    batches: int,
    least: float,
    way: float,
    announced: float,
    ranks: int,
    tmp_path: Path,
) -> None:
    blocks, spans, servers, shared = 8 // len(stages), list[Span](), dict[str, Server](), SharedStates(tmp_path)
    for stage, replicas in enumerate(stages):
        for number, seconds in enumerate(replicas):
            rps = announced * blocks * TOKENS / min(map(min, stages))
            spans.append(Span(f"{stage}.{number}", blocks * stage, blocks * (stage + 1), forward_rps=rps))
            servers[spans[-1].peer] = Server(seconds / blocks / TOKENS, in_order=True)
    routers = [Router(rank, shared) for rank in range(ranks)]
    seconds, _ = simulate(spans, servers, batches, way=way, routers=routers, chained=True)
    slowest = max(1 / sum(1 / seconds for seconds in replicas) for replicas in stages)
    limit = sum(min(replicas) + way for replicas in stages) + (batches - 1) * slowest
    assert limit / seconds > least
