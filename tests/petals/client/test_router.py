"""The choice of routes, on simulated servers whose true speed is known."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_swarm import TOKENS, Server, simulate

from dist_eval.petals.client.failures import Failure
from dist_eval.petals.client.pacing import Ticket
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span, without
from dist_eval.process.shared_state import SharedStates


def seconds_of(
    spans: list[Span],
    rates: dict[str, float],
    *,
    batches: int = 200,
    window: int = 8,
    way: float = 0.0,
    choose: Callable[[int], Span] | None = None,
    routers: Sequence[Router] = (),
) -> tuple[float, Counter[str]]:
    """Sends batches to servers.

    Args:
        rates: seconds of each server for one token through one block.
        routers: of each rank; by default there is one.
        choose: chooses servers instead of the router.

    Returns:
        Seconds until the last answer, and requests to each server.
    """
    servers = {peer: Server(rate) for peer, rate in rates.items()}
    seconds, ranks = simulate(spans, servers, batches, way=way, window=window, choose=choose, routers=routers)
    return seconds, sum((rank.counts for rank in ranks), Counter[str]())


def at_random(spans: list[Span]) -> Callable[[int], Span]:
    """Chooses servers at random, weighed by the length of their spans, as Petals does."""
    generator = random.Random(0)

    def choose(block: int) -> Span:
        here = [span for span in spans if span.start <= block < span.end]
        chosen = generator.choices(here, [span.end - span.start for span in here])[0]
        return Span(chosen.peer, block, chosen.end)

    return choose


def send(router: Router, peer: str, now: float, work: int = TOKENS) -> Ticket:
    ticket = router.stats(peer).pacing.admit(work, now)
    assert isinstance(ticket, Ticket)
    return ticket


def measure(router: Router, peer: str, seconds: float, work: int = TOKENS, now: float = 0.0) -> None:
    """Has a server answer a request that takes this long."""
    router.stats(peer).pacing.answered(send(router, peer, now, work), now + seconds)


def first_of(router: Router, spans: Sequence[Span], start: int, end: int, now: float) -> Span | None:
    """Returns the first segment of a route."""
    return next(iter(router.route(spans, start, end, TOKENS, now)), None)


@pytest.mark.parametrize("way", [0.0, 0.2])
@pytest.mark.parametrize("slower", [1.0, 2.0, 5.0, 20.0])
def test_replicas_get_work_in_proportion_to_their_speed(slower: float, way: float) -> None:
    rates = {"fast": 2e-5, "slow": 2e-5 * slower}
    seconds, counts = seconds_of([Span("fast", 0, 4), Span("slow", 0, 4)], rates, way=way, window=12)
    ideal = 200 * TOKENS * 4 / (1 / rates["fast"] + 1 / rates["slow"])
    assert ideal / seconds > 0.8
    assert counts["slow"] <= 200 / (1 + slower) * 1.5 + 2


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("announced", [None, 1.0, 200.0])
def test_what_waits_leaves_a_replica_that_turns_out_slow(announced: float | None, ranks: int, tmp_path: Path) -> None:
    rates, shared = {"fast": 1e-4, "slow": 5e-4}, SharedStates(tmp_path)
    routers = [Router(rank, shared) for rank in range(ranks)]
    spans = [Span(peer, 0, 4, forward_rps=announced and announced / rates["fast"]) for peer in rates]
    seconds, counts = seconds_of(spans, rates, batches=20, window=20, way=0.001, routers=routers)
    assert 20 / 1.2 * 4 * TOKENS * rates["fast"] / seconds > 0.8
    assert counts["slow"] < 5


def test_it_is_much_faster_than_random_routing_when_one_replica_is_slow() -> None:
    spans = [Span("first", 0, 4), Span("fast", 4, 8), Span("slow", 4, 8)]
    rates = {"first": 1e-5, "fast": 2e-5, "slow": 1e-4}
    measured, _ = seconds_of(spans, rates)
    chance, _ = seconds_of(spans, rates, choose=at_random(spans))
    assert chance / measured > 1.8


def test_a_slow_server_in_the_only_route_is_used() -> None:
    _, counts = seconds_of([Span("a", 0, 2), Span("b", 2, 4)], {"a": 1e-5, "b": 1e-3}, batches=20)
    assert counts == {"a": 20, "b": 20}


def test_ties_between_equal_replicas_are_broken_differently_on_each_rank() -> None:
    spans = [Span("a", 0, 4), Span("b", 0, 4)]
    first = []
    for rank in range(40):
        segment = first_of(Router(rank), spans, 0, 4, 0.0)
        assert segment is not None
        first.append(segment.peer)
    assert 8 <= first.count("a") <= 32


def test_requests_that_are_sent_or_wait_count_before_anything_is_measured() -> None:
    spans, router = [Span("a", 0, 4), Span("b", 0, 4), Span("c", 0, 4)], Router()
    sent = []
    for _ in range(6):
        segment = first_of(router, spans, 0, 4, 0.0)
        assert segment is not None
        if segment.peer in sent:
            router.stats(segment.peer).pacing.add_steps(4 * TOKENS)
        else:
            send(router, segment.peer, 0.0, 4 * TOKENS)
        sent.append(segment.peer)
    assert Counter(sent) == {"a": 2, "b": 2, "c": 2}


def test_before_their_first_answer_servers_are_as_fast_as_they_announce_beside_those_that_are_measured() -> None:
    fast, slow, silent = Span("fast", 0, 4, forward_rps=8000.0), Span("slow", 0, 4, forward_rps=1000.0), Span("?", 0, 4)
    assert all(chosen(Router(seed), [slow, fast]) == "fast" for seed in range(20))
    router = Router()
    measure(router, "fast", 2.0, 4 * TOKENS)  # 2000 tokens a second through a block
    router.stats("fast").pacing.add_steps(8 * TOKENS)  # 4 s
    assert chosen(router, [fast, slow]) == "fast"  # slow: 250 tokens a second
    assert chosen(router, [fast, Span("other", 0, 4, forward_rps=16000.0)]) == "other"
    assert chosen(router, [fast, silent]) == "?"  # as fast as the fastest, and idle


def test_a_speed_that_is_announced_counts_up_to_thirty_times_that_of_the_slowest_and_of_the_fastest_measured() -> None:
    honest = Span("honest", 0, 4, forward_rps=1000.0)
    for rps in (1e5, 1e9, 1e300, float("inf")):
        boaster = Span("boaster", 0, 4, forward_rps=rps)
        for is_measured in (False, True):
            router = Router()
            if is_measured:
                measure(router, "honest", 2.0, 4 * TOKENS)
            assert chosen(router, [honest, boaster]) == "boaster"
            router.stats("boaster").pacing.add_steps(12 * 4 * TOKENS)
            assert chosen(router, [honest, boaster]) == "boaster"
            router.stats("boaster").pacing.add_steps(24 * 4 * TOKENS)
            assert chosen(router, [honest, boaster]) == "honest"


def test_who_announces_more_than_it_does_does_not_make_the_others_look_slow() -> None:
    router, honest = Router(), Span("honest", 0, 4, forward_rps=1000.0)
    measure(router, "boaster", 2.0, 4 * TOKENS)  # no more than the other one announces
    router.stats("boaster").pacing.add_steps(36 * 4 * TOKENS)
    assert chosen(router, [honest, Span("boaster", 0, 4, forward_rps=1e300)]) == "honest"


@given(st.lists(st.floats() | st.none() | st.integers(-1, 1), min_size=1, max_size=4), st.booleans())
def test_there_is_a_route_whatever_servers_announce(announced: list[float | None], is_measured: bool) -> None:
    spans = [Span(str(number), 0, 4, forward_rps=rps) for number, rps in enumerate(announced)]
    router = Router()
    if is_measured:
        measure(router, "0", 1.0)
    for _ in range(3):
        router.stats(chosen(router, spans)).pacing.add_steps(1000 * TOKENS)


def chosen(router: Router, spans: list[Span]) -> str:
    segment = first_of(router, spans, 0, 4, 5.0)
    assert segment is not None
    return segment.peer


def test_without_measurements_routes_have_few_segments() -> None:
    spans = [Span("half", 0, 4), Span("other half", 4, 8), Span("all", 0, 8)]
    segments = [first_of(Router(seed), spans, 0, 8, 0.0) for seed in range(20)]
    assert {segment.peer for segment in segments if segment} == {"all"}


def test_a_request_leaves_a_slow_server_where_a_fast_one_begins() -> None:
    router = Router()
    for peer, seconds in (("slow", 4.0), ("fast", 0.1)):
        measure(router, peer, seconds, 4 * TOKENS)
    spans = [Span("slow", 0, 6), Span("fast", 2, 8)]
    segment = first_of(router, spans, 0, 8, 5.0)
    assert segment == Span("slow", 0, 2)
    assert first_of(router, spans, 2, 8, 5.0) == Span("fast", 2, 8)


def test_a_server_that_failed_is_banned_and_longer_each_time() -> None:
    spans, router = [Span("good", 0, 4), Span("bad", 0, 4)], Router()
    bad, lengths, now = router.stats("bad"), [], 0.0
    for _ in range(3):
        bad.failed(now)
        assert all(first_of(router, spans, 0, 4, now) == Span("good", 0, 4) for _ in range(20))
        start = now
        while bad.is_banned(now):
            now += 0.1
        lengths.append(now - start)
    assert lengths[0] < lengths[1] < lengths[2]
    bad.answered(TOKENS, now, now + 1)
    bad.failed(now)
    assert not bad.is_banned(now + lengths[0] + 0.1), "an answer ends the streak"


def test_a_ban_lasts_several_times_as_long_as_the_request_that_was_lost() -> None:
    hung = Router().stats("hung")
    hung.failed(5.0, Failure.NO_ANSWER, lost=5.0)
    assert hung.is_banned(24.9) and not hung.is_banned(25.1)
    hung.failed(30.0, Failure.NO_ANSWER, lost=5.0)
    assert hung.is_banned(69.9) and not hung.is_banned(70.1)
    hung.failed(75.0, Failure.NO_ANSWER, lost=100.0)
    assert not hung.is_banned(135.1), "never longer than a minute"


def test_a_server_that_failed_is_used_where_there_is_no_other() -> None:
    router = Router()
    router.stats("only").failed(0.0)
    assert first_of(router, [Span("only", 0, 4)], 0, 4, 0.0) == Span("only", 0, 4)


def test_a_server_that_was_slow_is_tried_again() -> None:
    router = Router()
    for peer, seconds in (("slow", 5.0), ("fast", 1.0)):
        measure(router, peer, seconds)
    spans = [Span("slow", 0, 1), Span("fast", 0, 1)]
    router.stats("fast").pacing.add_steps(TOKENS)
    assert first_of(router, spans, 0, 1, 6.0) == Span("fast", 0, 1)
    assert first_of(router, spans, 0, 1, 300.0) == Span("slow", 0, 1)


def test_opening_a_connection_does_not_make_a_server_look_slow() -> None:
    router = Router()
    measure(router, "in use", 0.1)
    measure(router, "slow to connect", 2.0)
    measure(router, "slow to connect", 0.1, now=2.5)
    spans = [Span("in use", 0, 1), Span("slow to connect", 0, 1)]
    router.stats("in use").pacing.add_steps(TOKENS)
    assert first_of(router, spans, 0, 1, 3.0) == Span("slow to connect", 0, 1)


def test_blocks_without_a_server_have_no_route() -> None:
    assert first_of(Router(), [], 0, 4, 0.0) is None
    assert first_of(Router(), [Span("a", 0, 2), Span("b", 3, 4)], 0, 4, 0.0) is None


spans_of_eight = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 7), st.integers(1, 8)).filter(lambda s: s[1] < s[2]),
    max_size=8,
    unique_by=lambda s: s[0],
)


@given(spans_of_eight, st.integers(0, 7), st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-3, 1e3)))
def test_segments_lead_to_the_end_whenever_there_is_a_route(
    drawn: list[tuple[str, int, int]], start: int, seconds: dict[str, float]
) -> None:
    spans, router = [Span(*span) for span in drawn], Router()
    for peer, taken in seconds.items():
        measure(router, peer, taken)
    holders = {block for span in spans for block in range(span.start, span.end)}
    reachable = holders >= set(range(start, 8))
    block = start
    while block < 8:
        segment = first_of(router, spans, block, 8, 1e4)
        assert (segment is not None) == reachable
        if segment is None:
            return
        whole = next(span for span in spans if span.peer == segment.peer)
        assert whole.start <= segment.start == block < segment.end <= whole.end
        block = segment.end
    assert block == 8


@given(spans_of_eight, spans_of_eight)
def test_avoided_segments_are_removed_where_another_server_holds_them(
    drawn: list[tuple[str, int, int]], avoided: list[tuple[str, int, int]]
) -> None:
    spans, segments = [Span(*span) for span in drawn], [RouteSegment(*segment) for segment in avoided]
    holders = {block: {span.peer for span in spans if span.start <= block < span.end} for block in range(8)}
    for block, left in {
        block: {span.peer for span in without(spans, segments) if span.start <= block < span.end} for block in range(8)
    }.items():
        unwanted = {peer for peer, start, end in avoided if start <= block < end}
        if holders[block] - unwanted:
            assert left == holders[block] - unwanted
        else:
            assert len(left) == min(1, len(holders[block])), "one of the avoided servers has to do it"
