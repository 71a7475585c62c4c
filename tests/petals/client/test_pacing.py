"""The pace of requests: what is let through when, and what is expected of a server."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_swarm import BEGIN, TOKENS, Server, simulate

from dist_eval.petals.client.pacing import Pacing
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.unanswered import Ticket, Unanswered, forget, settle
from dist_eval.process.shared_state import SharedStates

WORK = 8000
"""Of a request, in tokens times blocks."""

PERIOD = 100.0

SECONDS, BLOCKS = 0.2, 4
"""Of a stage of a pipeline, for a batch."""


def share_of_limit(
    stages: int,
    batches: int,
    way: float,
    *,
    routers: list[Router] | None = None,
    noise: float = 0.0,
    jitter: float = 0.0,
    measured: float | None = None,
    announced: float | None = 1.0,
    busy: float = SECONDS,
) -> tuple[float, list[Server]]:
    """Sends batches through a pipeline of equal servers.

    Args:
        announced: their speed by their own account, as a multiple of the true one; None if they do not say.
        busy: seconds that each takes for a batch.

    Returns:
        The least time that it could take, divided by the time that it took; and the servers.
    """
    rate = busy / BLOCKS / TOKENS
    spans = [
        Span(str(stage), BLOCKS * stage, BLOCKS * (stage + 1), forward_rps=announced and announced / rate)
        for stage in range(stages)
    ]
    servers = {span.peer: Server(rate, noise) for span in spans}
    seconds, ranks = simulate(
        spans, servers, batches, way=way, jitter=jitter, window=64, routers=routers, measured=measured
    )
    assert sum(rank.finished for rank in ranks) == batches
    return (stages * (busy + way) + (batches - 1) * busy) / seconds, list(servers.values())


@pytest.mark.parametrize("way", [0.0, 0.02, 0.1, 0.5])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_pipeline_is_busy_nearly_all_the_time_and_holds_little(stages: int, way: float) -> None:
    share, servers = share_of_limit(stages, 100, way)
    assert share > 0.95
    assert all(server.most_held <= (4 if way < SECONDS else 5) for server in servers)


@pytest.mark.parametrize("way", [0.0, 0.1])
def test_few_batches_pass_without_a_convoy(way: float) -> None:
    share, _ = share_of_limit(2, 20, way)
    assert share > 0.9


@pytest.mark.parametrize("way", [0.02, 0.1, 0.5])
def test_a_way_that_was_not_measured_is_learned(way: float) -> None:
    share, servers = share_of_limit(1, 300, way, measured=0.0, announced=None)
    assert share > 0.91
    assert servers[0].most_held <= 5


@pytest.mark.parametrize("announced", [None, 0.5, 1.0, 2.5, 20.0])
@pytest.mark.parametrize(("way", "measured", "batches"), [(0.1, 0.1, 50), (0.7, 0.1, 50), (1.4, 0.2, 100)])
def test_large_messages_take_longer_than_the_round_trip_that_was_measured(
    way: float, measured: float, batches: int, announced: float | None
) -> None:
    share, servers = share_of_limit(2, batches, way, measured=measured, announced=announced)
    assert share > (0.92 if announced == 1.0 else 0.85)
    assert all(server.most_held <= 7 for server in servers)


@pytest.mark.parametrize("announced", [None, 1.0])
@pytest.mark.parametrize("way", [0.1, 0.2])
def test_a_distant_server_that_is_fast_is_found_to_be(way: float, announced: float | None) -> None:
    share, servers = share_of_limit(2, 100, way, measured=0.1, announced=announced, busy=0.04)
    assert share > 0.9
    assert all(server.most_held <= 15 for server in servers)


@pytest.mark.parametrize("busy", [0.02, 0.04])
def test_a_fast_server_is_kept_busy_though_the_way_varies(busy: float) -> None:
    share, servers = share_of_limit(2, 200, 0.1, jitter=0.1, busy=busy)
    assert share > 0.8
    assert all(server.most_held <= 15 for server in servers)


@pytest.mark.parametrize("way", [0.0, 0.1])
def test_servers_of_unsteady_speed_are_kept_busy(way: float) -> None:
    share, servers = share_of_limit(1, 300, way, noise=0.5)
    assert share > 0.93
    assert servers[0].most_held <= 4


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_a_host_are_paced_as_one(ranks: int, tmp_path: Path) -> None:
    alone, _ = share_of_limit(2, 40, 0.0)
    shared = SharedStates(tmp_path)
    together, servers = share_of_limit(2, 40, 0.0, routers=[Router(rank, shared) for rank in range(ranks)])
    apart, _ = share_of_limit(2, 40, 0.0, routers=[Router(rank) for rank in range(ranks)])
    assert together > max(0.93, alone - 0.03)
    assert together > apart
    assert all(server.most_held <= 4 for server in servers)


@pytest.mark.parametrize("way", [0.0, 0.1])
@pytest.mark.parametrize("ranks", [1, 4])
def test_replicas_of_unequal_speed_are_used_together(ranks: int, way: float, tmp_path: Path) -> None:
    rate, shared = SECONDS / BLOCKS / TOKENS, SharedStates(tmp_path)
    rates = {"first": rate, "fast": 1.5 * rate, "slow": 3 * rate}  # the replicas do as much as the first stage
    spans = [Span("first", 0, BLOCKS), Span("fast", BLOCKS, 2 * BLOCKS), Span("slow", BLOCKS, 2 * BLOCKS)]
    servers = {peer: Server(rate) for peer, rate in rates.items()}
    routers = [Router(rank, shared) for rank in range(ranks)]
    seconds, _ = simulate(spans, servers, 50, way=way, routers=routers)
    assert (2.5 * SECONDS + 2 * way + 49 * SECONDS) / seconds > 0.92


def test_a_server_that_stops_answering_gets_nothing_more() -> None:
    spans = [Span("hangs", 0, BLOCKS), Span("other", 0, BLOCKS)]
    servers = {span.peer: Server(SECONDS / BLOCKS / TOKENS) for span in spans}
    servers["hangs"].stops_at = BEGIN + 5.0
    _, (rank,) = simulate(spans, servers, 100, way=0.02)
    lost = rank.counts["hangs"] - (rank.finished - rank.counts["other"])
    assert lost <= 3
    assert rank.counts["other"] > 1.5 * rank.counts["hangs"], "the other one gets what comes later"


def test_the_first_two_requests_are_a_round_trip_apart_and_the_third_waits() -> None:
    pacing = Pacing()
    pacing.measured_round_trip(0.1)
    first = admitted(pacing, 5.0)
    assert pacing.admit(WORK, 5.0) == pytest.approx(0.1)
    admitted(pacing, 5.1)
    wait = pacing.admit(WORK, 5.1)
    assert isinstance(wait, float) and wait > 1
    pacing.answered(first, 5.4)
    admitted(pacing, 5.4)


def test_a_server_close_by_gets_the_second_request_after_the_first_answer() -> None:
    pacing = Pacing()
    pacing.measured_round_trip(0.001)
    ticket = admitted(pacing, 5.0)
    assert isinstance(pacing.admit(WORK, 9.0), float)
    pacing.answered(ticket, 9.0)
    admitted(pacing, 9.0)


@pytest.mark.parametrize(("announced", "wait"), [(0.05, 0.001), (0.2, 0.02), (2.0, 1.7), (60.0, 59.7)])
def test_the_second_request_arrives_before_the_first_is_done_as_announced(announced: float, wait: float) -> None:
    pacing = Pacing()
    pacing.measured_round_trip(0.001)
    pacing.announced_seconds_per_work = announced / WORK
    admitted(pacing, 5.0)
    assert pacing.admit(WORK, 5.0) == pytest.approx(wait)


def test_the_first_requests_to_a_distant_server_arrive_one_after_the_other_as_announced() -> None:
    pacing = Pacing()
    pacing.measured_round_trip(1.0)
    pacing.announced_seconds_per_work = 0.2 / WORK
    for now in (5.0, 6.0, 6.2, 6.4):
        assert now == 5.0 or pacing.admit(WORK, 5.0) == pytest.approx(now - 5.0)
        admitted(pacing, now + 1e-9)
    wait = pacing.admit(WORK, 6.5)
    assert isinstance(wait, float) and wait > 4


def test_slow_requests_overlap_little() -> None:
    pacing = measured(seconds=6.0)
    admitted(pacing, 20.0)
    assert pacing.admit(WORK, 20.0) == pytest.approx(6.0 - 0.3)


def test_a_server_that_is_late_gets_nothing_more() -> None:
    pacing = measured(seconds=1.0)
    for now in (20.0, 20.7):
        ticket = admitted(pacing, now)
    assert [isinstance(pacing.admit(WORK, now), float) for now in (23.0, 30.0, 300.0)] == [True] * 3
    pacing.failed(ticket, 300.0)
    admitted(pacing, 300.0)


def test_a_round_trip_that_was_measured_too_long_is_no_longer_believed() -> None:
    pacing = Pacing()
    pacing.measured_round_trip(0.5)
    for now in (10.0, 11.0, 12.0):
        pacing.answered(admitted(pacing, now), now + 0.1)
    assert pacing.seconds_per_work is not None and pacing.seconds_per_work * WORK > 0.04


def test_a_request_that_failed_is_not_waited_for() -> None:
    pacing = measured(seconds=1.0)
    tickets = [admitted(pacing, now) for now in (20.0, 20.7)]
    assert pacing.outlook(20.7, 1e-9).latency(WORK) == pytest.approx(2.3)
    pacing.failed(tickets[0], 20.8)
    assert pacing.outlook(20.8, 1e-9).latency(WORK) == pytest.approx(1.2)
    pacing.failed(tickets[1], 20.8)
    assert pacing.outlook(20.8, 1e-9).latency(WORK) == pytest.approx(1.0, rel=0.2)
    admitted(pacing, 20.8)


def test_what_was_sent_delays_the_next_answer() -> None:
    pacing = measured(seconds=2.0)
    assert pacing.outlook(12.0, 1e-9).latency(WORK) == pytest.approx(2.0)
    admitted(pacing, 12.0)
    assert pacing.outlook(13.0, 1e-9).latency(WORK) == pytest.approx(3.0)
    pacing.add_steps(WORK // 2)
    assert pacing.outlook(13.0, 1e-9).latency(WORK) == pytest.approx(4.0)


def test_what_another_rank_sent_delays_the_next_answer(tmp_path: Path) -> None:
    one, other = (Pacing(SharedStates(tmp_path), "server") for _ in range(2))
    one.answered(admitted(one, 10.0), 12.0)
    admitted(one, 12.0)
    one.add_steps(WORK)
    assert other.outlook(12.0, 1e-9).latency(WORK) == pytest.approx(6.0)
    one.add_steps(-WORK)
    assert other.outlook(12.0, 1e-9).latency(WORK) == pytest.approx(4.0)


@pytest.mark.parametrize("busy", [False, True])
def test_what_a_rank_that_hangs_has_sent_is_forgotten(busy: bool, tmp_path: Path) -> None:
    hangs, other = (Pacing(SharedStates(tmp_path), "server", period=100.0) for _ in range(2))
    other.answered(admitted(other, 10.0), 12.0)
    sent = [admitted(hangs, now) for now in (12.0, 13.8)]
    hangs.add_steps(3 * WORK)
    other.add_steps(WORK)
    now = 13.8
    while now < 240.0:  # the other rank goes on, or waits as well
        now += 2.0
        if busy and isinstance(ticket := other.admit(WORK, now), Ticket):
            now += 2.0
            other.answered(ticket, now)
    assert other.outlook(240.0, 1e-9).latency(WORK) == pytest.approx(4.0, abs=0.1), (
        "its own time, after what waits here"
    )
    ticket = admitted(other, 240.0)
    for late in sent:  # it goes on
        hangs.answered(late, 241.0)
    assert other.outlook(241.0, 1e-9).latency(WORK) == pytest.approx(1.0 + 3 * 2.0 + 2.0 + 2.0, abs=0.1)
    other.answered(ticket, 242.0)
    hangs.add_steps(-3 * WORK)
    other.add_steps(-WORK)
    assert (other._pace.unanswered, other._pace.unanswered_work, other._pace.steps) == (0, 0, 0)


def test_a_small_request_does_not_wait_until_large_ones_are_done() -> None:
    pacing = measured(seconds=1.0)
    admitted(pacing, 20.0)
    large, small = pacing.admit(3 * WORK, 20.05), pacing.admit(WORK // 10, 20.05)
    assert large == small == pytest.approx(0.65)


def test_a_server_whose_answers_are_late_is_expected_to_be_slow() -> None:
    pacing, expected = Pacing(), 1.0 / WORK
    assert pacing.outlook(10.0, expected).latency(WORK) == pytest.approx(1.0)
    ticket = admitted(pacing, 10.0)
    assert pacing.outlook(10.4, expected).latency(WORK) == pytest.approx(0.6 + 1.0)
    assert pacing.outlook(13.0, expected).latency(WORK) == pytest.approx(3.0 + 6.0)
    pacing.failed(ticket, 13.0)
    assert pacing.outlook(13.0, expected).latency(WORK) == pytest.approx(1.0)
    pacing = measured(seconds=1.0)
    admitted(pacing, 20.0)
    assert pacing.outlook(24.0, expected).latency(WORK) == pytest.approx(3.0 + 1.0)


def test_an_idle_server_may_have_become_faster() -> None:
    pacing = measured(seconds=2.0)
    expected = 0.5 / WORK
    assert pacing.outlook(42.0, expected).latency(WORK) == pytest.approx(1.0, rel=0.01)
    assert pacing.outlook(1000.0, expected).latency(WORK) == pytest.approx(0.5)


@pytest.mark.parametrize("seconds", [0.2, 20.0])
def test_a_server_that_works_at_another_speed_now_is_measured_again(seconds: float) -> None:
    pacing = measured(seconds=2.0)
    second = admitted(pacing, 12.0)
    third = admitted(pacing, 13.8)
    for ticket, now in ((second, 14.0), (third, 16.0)):  # one follows the other
        pacing.answered(ticket, now)
    assert pacing.seconds_per_work == pytest.approx(2.0 / WORK)
    now = 20.0
    for _ in range(30):  # one at a time: none follows another
        ticket = admitted(pacing, now)
        now += seconds
        pacing.answered(ticket, now)
    assert pacing.seconds_per_work is not None
    assert 0.45 * seconds < pacing.seconds_per_work * WORK < 1.01 * seconds


def admitted(pacing: Pacing, now: float) -> Ticket:
    ticket = pacing.admit(WORK, now)
    assert isinstance(ticket, Ticket)
    return ticket


def measured(seconds: float) -> Pacing:
    """Returns the pacing of a server that answered once, at 12 s."""
    pacing = Pacing()
    pacing.answered(admitted(pacing, 12.0 - seconds), 12.0)
    assert pacing.seconds_per_work == pytest.approx(seconds / WORK)
    return pacing


@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "answer", "fail"]), st.floats(0.0, 100.0), st.integers(1, 10**6)),
        max_size=200,
    ),
    st.randoms(use_true_random=False),
    st.sampled_from([0.0, 0.001, 0.5, 50.0]),
    st.none() | st.floats(1e-9, 1.0),
)
def test_no_order_of_events_closes_a_gate_for_good(
    events: list[tuple[str, float, int]], random: Random, round_trip: float, announced: float | None
) -> None:
    pacing, now = Pacing(), 0.0
    pacing.announced_seconds_per_work = announced
    if round_trip:
        pacing.measured_round_trip(round_trip)
    inside: list[Ticket] = []
    for kind, seconds, work in events:
        now += seconds
        if kind == "admit":
            ticket = pacing.admit(work, now)
            if isinstance(ticket, Ticket):
                inside.append(ticket)
        elif inside:
            ticket = inside.pop(random.randrange(len(inside)))
            if kind == "answer":
                pacing.answered(ticket, now)
            else:
                pacing.failed(ticket, now)
        assert 0.0 <= pacing.outlook(now, 1e-6).latency(work) < 1e12
    for ticket in inside[1:]:
        pacing.failed(ticket, now)
    for _ in range(3):
        wait = pacing.admit(1, now)
        if isinstance(wait, Ticket):
            return
        now += wait
    raise AssertionError("one request without an answer closes the gate")


def send(pace: Unanswered, work: int, now: float) -> Ticket:
    forget(pace, now, PERIOD)
    pace.unanswered += 1
    pace.unanswered_work += work
    return Ticket(work, now, now, period=pace.period)


def test_a_request_counts_until_a_whole_period_later() -> None:
    pace = Unanswered()
    early, late = send(pace, 3, 1.0), send(pace, 5, 90.0)
    forget(pace, 150.0, PERIOD)
    assert (pace.unanswered, pace.unanswered_work) == (2, 8)
    assert settle(pace, late) and (pace.unanswered, pace.unanswered_work) == (1, 3)
    forget(pace, 250.0, PERIOD)
    assert (pace.unanswered, pace.unanswered_work) == (0, 0)
    assert not settle(pace, early) and (pace.unanswered, pace.unanswered_work) == (0, 0)


def test_after_a_long_pause_all_is_forgotten() -> None:
    pace = Unanswered()
    ticket = send(pace, 3, 1.0)
    pace.steps = 7
    forget(pace, 1000.0, PERIOD)
    assert (pace.unanswered, pace.unanswered_work, pace.steps) == (0, 0, 0)
    assert not settle(pace, ticket)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 150.0), st.integers(1, 1000)), max_size=50))
def test_what_is_counted_is_what_was_sent_lately_and_not_settled(events: list[tuple[bool, float, int]]) -> None:
    pace, now, open_tickets = Unanswered(), 1.0, list[Ticket]()
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
