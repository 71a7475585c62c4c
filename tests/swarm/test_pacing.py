"""The pace of requests, on simulated servers that work block by block, by turns, as Petals' do."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.process.shared_state import SharedStates
from dist_eval.swarm.pacing import Pacing, Ticket

WORK = 8000
"""Of a request, in tokens times blocks."""


class Clock:
    """Simulated time."""

    def __init__(self) -> None:
        self.now = 100.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def run(self) -> None:
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()


class Server:
    """One thing at a time: a block of the request that has waited longest."""

    def __init__(self, clock: Clock, seconds: float, blocks: int, noise: float, generator: random.Random) -> None:
        self.clock, self.block_seconds, self.blocks = clock, seconds / blocks, blocks
        self.noise, self.generator = noise, generator
        self.queue: deque[tuple[int, Callable[[], None]]] = deque()
        self.is_busy, self.held, self.most_held = False, 0, 0

    def receive(self, answer: Callable[[], None]) -> None:
        self.held += 1
        self.most_held = max(self.most_held, self.held)
        self.queue.append((0, answer))
        self._work()

    def _work(self) -> None:
        if not self.is_busy and self.queue:
            self.is_busy = True
            block, answer = self.queue.popleft()
            seconds = self.block_seconds * (1.0 + self.noise * self.generator.uniform(-1.0, 1.0))
            self.clock.after(seconds, lambda: self._done(block + 1, answer))

    def _done(self, block: int, answer: Callable[[], None]) -> None:
        self.is_busy = False
        if block < self.blocks:
            self.queue.append((block, answer))
        else:
            self.held -= 1
            answer()
        self._work()


def share_of_limit(
    stages: int,
    batches: int,
    way: float,
    *,
    seconds: float = 0.2,
    blocks: int = 4,
    pacings: Sequence[Sequence[Pacing]] | None = None,
    noise: float = 0.0,
    knows_way: bool = True,
) -> tuple[float, list[Server]]:
    """Sends batches through a pipeline of equal servers.

    Args:
        pacings: of each rank, for each stage; the ranks send in turn. By default those of one rank.
        knows_way: whether the round trip was measured before.

    Returns:
        The least time that it could take, divided by the time that it took; and the servers.
    """
    clock, generator = Clock(), random.Random(7)
    servers = [Server(clock, seconds, blocks, noise, generator) for _ in range(stages)]
    pacings = pacings or [[Pacing() for _ in range(stages)]]
    waiting: list[list[deque[int]]] = [[deque() for _ in range(stages)] for _ in pacings]
    for pacing in itertools.chain(*pacings):
        if knows_way:
            pacing.measured_round_trip(way)
    finished = 0

    def pump(rank: int, stage: int) -> None:
        queue, pacing = waiting[rank][stage], pacings[rank][stage]
        while queue:
            admitted = pacing.admit(WORK, clock.now)
            if not isinstance(admitted, Ticket):
                clock.after(max(1e-6, min(admitted, 0.02)), lambda: pump(rank, stage))
                return
            send(rank, stage, queue.popleft(), admitted)

    def send(rank: int, stage: int, batch: int, ticket: Ticket) -> None:
        def answered() -> None:
            nonlocal finished
            pacings[rank][stage].answered(ticket, clock.now)
            pump(rank, stage)
            if stage + 1 < stages:
                waiting[rank][stage + 1].append(batch)
                pump(rank, stage + 1)
            else:
                finished += 1

        clock.after(way / 2, lambda: servers[stage].receive(lambda: clock.after(way / 2, answered)))

    for batch in range(batches):
        waiting[batch % len(pacings)][0].append(batch)
    for rank in range(len(pacings)):
        pump(rank, 0)
    clock.run()
    assert finished == batches
    limit = stages * (seconds + way) + (batches - 1) * seconds
    return limit / (clock.now - 100.0), servers


@pytest.mark.parametrize("way", [0.0, 0.02, 0.1, 0.5])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_pipeline_is_busy_nearly_all_the_time_and_holds_little(stages: int, way: float) -> None:
    share, servers = share_of_limit(stages, 100, way)
    assert share > 0.95
    assert all(server.most_held <= 3 for server in servers)


@pytest.mark.parametrize("way", [0.0, 0.1])
def test_few_batches_pass_without_a_convoy(way: float) -> None:
    share, _ = share_of_limit(2, 20, way)
    assert share > 0.9


@pytest.mark.parametrize("way", [0.02, 0.1, 0.5])
def test_a_way_that_was_not_measured_is_learned(way: float) -> None:
    share, servers = share_of_limit(1, 300, way, knows_way=False)
    assert share > 0.94
    assert servers[0].most_held <= 4


@pytest.mark.parametrize("way", [0.0, 0.1])
def test_servers_of_unsteady_speed_are_kept_busy(way: float) -> None:
    share, servers = share_of_limit(1, 300, way, noise=0.5)
    assert share > 0.93
    assert servers[0].most_held <= 4


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_a_host_are_paced_as_one(ranks: int, tmp_path: Path) -> None:
    alone, _ = share_of_limit(2, 40, 0.0)
    shared = SharedStates(tmp_path)
    together, servers = share_of_limit(
        2, 40, 0.0, pacings=[[Pacing(shared, f"server {stage}") for stage in range(2)] for _ in range(ranks)]
    )
    apart, _ = share_of_limit(2, 40, 0.0, pacings=[[Pacing() for _ in range(2)] for _ in range(ranks)])
    assert together > max(0.93, alone - 0.03)
    assert together > apart
    assert all(server.most_held <= 3 for server in servers)


def test_the_first_two_requests_are_a_round_trip_apart_and_the_third_waits() -> None:
    pacing = Pacing()
    pacing.measured_round_trip(0.1)
    first = pacing.admit(WORK, 5.0)
    assert isinstance(first, Ticket)
    assert pacing.admit(WORK, 5.0) == pytest.approx(0.1)
    assert isinstance(pacing.admit(WORK, 5.1), Ticket)
    wait = pacing.admit(WORK, 5.1)
    assert isinstance(wait, float) and wait > 1
    pacing.answered(first, 5.4)
    assert isinstance(pacing.admit(WORK, 5.4), Ticket)


def test_after_a_failure_nothing_is_expected_of_the_server() -> None:
    pacing = measured(seconds=1.0)
    for now in (20.0, 20.2):
        assert isinstance(pacing.admit(WORK, now), Ticket)
    assert pacing.latency(WORK, 20.2, 1e-9) == pytest.approx(2.8)
    pacing.failed(20.5)
    assert pacing.latency(WORK, 20.5, 1e-9) == pytest.approx(1.0)


def test_what_is_sent_and_what_waits_delays_the_next_answer() -> None:
    pacing = measured(seconds=2.0)
    assert pacing.latency(WORK, 12.0, 1e-9) == pytest.approx(2.0)
    assert isinstance(pacing.admit(WORK, 12.0), Ticket)
    assert pacing.latency(WORK, 13.0, 1e-9) == pytest.approx(3.0)
    pacing.add_waiting(WORK // 2)
    assert pacing.latency(WORK, 13.0, 1e-9) == pytest.approx(4.0)


def test_what_another_rank_sent_or_has_waiting_delays_the_next_answer(tmp_path: Path) -> None:
    one, other = (Pacing(SharedStates(tmp_path), "server") for _ in range(2))
    ticket = one.admit(WORK, 10.0)
    assert isinstance(ticket, Ticket)
    one.answered(ticket, 12.0)
    assert isinstance(one.admit(WORK, 12.0), Ticket)
    one.add_waiting(WORK)
    assert other.latency(WORK, 12.0, 1e-9) == pytest.approx(6.0)
    one.add_waiting(-WORK)
    assert other.latency(WORK, 12.0, 1e-9) == pytest.approx(4.0)


def test_a_server_whose_first_answer_is_late_is_expected_to_be_slow() -> None:
    pacing, fastest = Pacing(), 1.0 / WORK
    assert pacing.latency(WORK, 10.0, fastest) == pytest.approx(1.0)
    assert isinstance(pacing.admit(WORK, 10.0), Ticket)
    assert pacing.latency(WORK, 10.4, fastest) == pytest.approx(0.6 + 1.0)
    assert pacing.latency(WORK, 13.0, fastest) == pytest.approx(3.0 + 6.0)
    pacing.failed(13.0)
    assert pacing.latency(WORK, 13.0, fastest) == pytest.approx(1.0)


def test_an_idle_server_may_have_become_faster() -> None:
    pacing = measured(seconds=2.0)
    fastest = 0.5 / WORK
    assert pacing.latency(WORK, 42.0, fastest) == pytest.approx(1.0, rel=0.01)
    assert pacing.latency(WORK, 1000.0, fastest) == pytest.approx(0.5)


def measured(seconds: float) -> Pacing:
    """Returns the pacing of a server that answered once, at 12 s."""
    pacing = Pacing()
    ticket = pacing.admit(WORK, 12.0 - seconds)
    assert isinstance(ticket, Ticket)
    pacing.answered(ticket, 12.0)
    assert pacing.seconds_per_work == pytest.approx(seconds / WORK)
    return pacing


@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "answer", "fail"]), st.floats(0.0, 100.0), st.integers(1, 10**6)),
        max_size=200,
    )
)
def test_no_order_of_events_closes_a_gate_for_good(events: list[tuple[str, float, int]]) -> None:
    pacing, now = Pacing(), 0.0
    inside: deque[Ticket] = deque()
    for kind, seconds, work in events:
        now += seconds
        if kind == "admit":
            admitted = pacing.admit(work, now)
            if isinstance(admitted, Ticket):
                inside.append(admitted)
        elif inside:
            ticket = inside.popleft()
            if kind == "answer":
                pacing.answered(ticket, now)
            else:
                pacing.failed(now)
    while inside:
        pacing.answered(inside.popleft(), now)
    for _ in range(100):
        admitted = pacing.admit(1, now)
        if isinstance(admitted, Ticket):
            return
        assert admitted < 1e6
        now += admitted
    raise AssertionError("a request waits for ever")
