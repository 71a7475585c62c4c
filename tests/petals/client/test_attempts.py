"""What is decided about a request that a server did not answer, without a swarm."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dist_eval.errors import ModelOutputError, NoCacheError, RefusedError, SwarmError
from dist_eval.petals.client.attempts import _MIN_STALL_SECONDS, Attempts, Choice, NoServer, RoutePart, TooLarge
from dist_eval.petals.client.chain import ChainAnswer, HopTimes
from dist_eval.petals.client.failures import LACKS_PROMPTS, ChooseAgain, Failure, WrongAnswer, classify
from dist_eval.petals.client.pacing import Ticket
from dist_eval.petals.client.petals_version import ANNOUNCED
from dist_eval.petals.client.records import Announcement, RouteSegment
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span

BLOCKS, TOKENS, TIMEOUT, LIMIT = 4, 100, 60.0, 4
REPLICAS = [Span(peer, 0, BLOCKS) for peer in ("a", "b", "c")]
LATE, GONE = asyncio.TimeoutError("late"), ConnectionError("gone")


class P2PHandlerError(Exception):
    """Named like the error with which hivemind passes on a server's."""


REFUSED = P2PHandlerError("shapes differ")


def attempts_of(
    avoided: list[RouteSegment] | None = None, *, prefer_whole: bool = False, router: Router | None = None
) -> Attempts:
    part = RoutePart(0, BLOCKS, TOKENS, avoided or (), prefer_whole)
    return Attempts(router or Router(), part, limit=LIMIT, timeout=TIMEOUT)


def choose(attempts: Attempts, online: Sequence[Span], now: float) -> Choice:
    return next(attempts.choices(online, now))


def fails(attempts: Attempts, error: Exception, online: list[Span], now: float = 0.0) -> float:
    """Asks one of the servers, which fails and is banned; returns the delay until the next attempt."""
    choice = choose(attempts, online, now)
    attempts.router.stats(choice.segment.peer).failed(now, classify(error))
    return attempts.failed(choice, error, now)


def test_each_failed_attempt_is_followed_by_one_on_another_server_with_more_time_between_them() -> None:
    attempts = attempts_of()
    assert [fails(attempts, LATE, REPLICAS) for _ in range(LIMIT - 1)] == [0.0, 1.0, 2.0]
    assert {peer: server.failures for peer, server in attempts.router.servers.items()} == {"a": 1, "b": 1, "c": 1}
    words = rf"got no answer for blocks 0:4 \(peer (\w)\) in {LIMIT} attempts: late"
    with pytest.raises(SwarmError, match=words):
        fails(attempts, LATE, REPLICAS)
    assert attempts.router.retries == LIMIT


def test_the_delay_is_bounded() -> None:
    attempts = attempts_of()
    attempts.limit = 20
    assert max(fails(attempts, LATE, REPLICAS) for _ in range(10)) == 5.0


def test_without_a_server_requests_wait_from_the_first_moment_on_and_no_attempt_is_counted() -> None:
    attempts = attempts_of()
    with pytest.raises(NoServer, match=r"^block 0: no server online holds it, or a block after it$") as first:
        choose(attempts, [Span("a", 1, BLOCKS)], 7.0)
    assert first.value.since == 7.0
    for _ in range(2 * LIMIT):
        with pytest.raises(NoServer, match=r"^blocks 0:4 \(peer \w\): gone$") as unreachable:
            attempts.failed(choose(attempts, REPLICAS, 8.0), GONE, 8.0)
        assert unreachable.value.since == 7.0
    assert fails(attempts, LATE, REPLICAS) == 0.0


def test_an_outage_begins_again_once_a_server_was_reached() -> None:
    attempts, began = attempts_of(), list[float]()
    for now in (10.0, 30.0, 40.0):
        with pytest.raises(NoServer) as outage:
            choose(attempts, [], now)
        began.append(outage.value.since)
        if now == 10.0:
            fails(attempts, REFUSED, REPLICAS[:1], now=20.0)
    assert began == [10.0, 30.0, 30.0]


def test_a_route_counts_only_if_none_of_its_servers_is_banned() -> None:
    attempts = attempts_of()
    assert attempts.has_route(REPLICAS[:1], 0.0)
    fails(attempts, LATE, REPLICAS[:1])
    assert not attempts.has_route(REPLICAS[:1], 0.0)
    assert attempts.has_route(REPLICAS[:1], 3600.0)
    assert not attempts.has_route([], 0.0)


def refuses(attempts: Attempts, online: list[Span], now: float, limit: int | None = None) -> str:
    """Has one of the servers refuse the size of the request; returns which."""
    choice = choose(attempts, online, now)
    words = "too large" if limit is None else f"Task size greater than max_batch_size ({limit}), it can't be processed"
    assert attempts.failed(choice, P2PHandlerError(words), now) == 0.0
    return choice.segment.peer


def test_a_request_is_split_only_if_all_servers_refuse_its_size() -> None:
    attempts = attempts_of()
    assert {refuses(attempts, REPLICAS, 0.0, TOKENS - 1) for _ in REPLICAS} == {"a", "b", "c"}
    again = Attempts(attempts.router, attempts.part, limit=LIMIT, timeout=TIMEOUT)  # nobody has to be asked twice
    for requests in (attempts, again):
        with pytest.raises(TooLarge, match=r"^peer \w: .* max_batch_size \(99\), it can't be processed$"):
            choose(requests, REPLICAS, 0.0)
    assert not any(server.is_banned(0.0) for server in attempts.router.servers.values()), "it was too large"
    assert attempts.router.retries == 0
    smaller = Attempts(attempts.router, RoutePart(0, BLOCKS, TOKENS - 1), limit=LIMIT, timeout=TIMEOUT)
    assert choose(smaller, REPLICAS, 0.0)


@pytest.mark.parametrize("error", [LATE, GONE])
def test_while_all_that_did_not_refuse_a_request_fail_it_is_sent_in_halves(error: Exception) -> None:
    router, asked, now = Router(), {"a": 0, "b": 0}, 0.0
    online = [Span("a", 0, BLOCKS), Span("b", 0, BLOCKS, forward_rps=1e9)]  # b is announced, but does not answer

    def rows_answered(rows: int) -> int:
        nonlocal now
        attempts = Attempts(router, RoutePart(0, BLOCKS, rows * 64, rows=rows), limit=LIMIT, timeout=TIMEOUT)
        while True:
            try:
                choice = choose(attempts, online, now)
            except TooLarge as too_large:
                assert re.fullmatch(r"peer a: .* max_batch_size \(1024\), .*", str(too_large))
                return rows_answered(rows // 2) + rows_answered(rows - rows // 2)
            peer = choice.segment.peer
            asked[peer] += 1
            assert asked["b"] <= 20, "it is tried again now and then, after longer and longer bans"
            now += choice.stall_timeout if (peer, error) == ("b", LATE) else 0.01
            if peer == "a" and rows <= 16:
                router.stats("a").answered(rows, now - 0.01, now)
                attempts.answered(choice, now)
                return rows
            reason = P2PHandlerError("Task size greater than max_batch_size (1024), it") if peer == "a" else error
            router.stats(peer).failed(now, classify(reason))
            try:
                attempts.failed(choice, reason, now)
            except NoServer:
                assert attempts.has_route(online, now), "it would wait, although halves are taken"

    assert sum(rows_answered(32) for _ in range(100)) == 3200
    assert asked["a"] >= 200


def test_a_single_text_waits_for_the_servers_that_did_not_refuse_it() -> None:
    online, attempts = REPLICAS[:2], attempts_of()
    refusing = refuses(attempts, online, 0.0)
    with pytest.raises(NoServer):
        fails(attempts, GONE, online)
    assert not attempts.has_route(online, 0.0)
    assert choose(attempts, online, 0.0).segment.peer != refusing


def test_who_refuses_the_size_that_another_one_takes_is_banned_and_never_asked_for_it_again() -> None:
    attempts = attempts_of()
    liar = refuses(attempts, REPLICAS, 5.0)
    taken = choose(attempts, REPLICAS, 5.0)
    assert taken.segment.peer != liar
    attempts.answered(taken, 6.0)
    assert {peer for peer, server in attempts.router.servers.items() if server.is_banned(6.5)} == {liar}
    for later in range(1000):
        assert choose(attempts_of(router=attempts.router), REPLICAS, 100.0 + later).segment.peer != liar
    assert attempts.has_route(REPLICAS, 100.0)
    [alone] = [span for span in REPLICAS if span.peer == liar]
    assert not attempts.has_route([alone], 100.0)
    with pytest.raises(TooLarge):
        choose(attempts_of(router=attempts.router), [alone], 100.0)


@pytest.mark.parametrize("stated", [None, TOKENS])
def test_who_refuses_what_it_says_it_takes_or_took_before_is_banned_for_longer_each_time(stated: int | None) -> None:
    router, lengths, now = Router(), list[float](), 0.0
    if stated is None:
        took = attempts_of(router=router)
        took.answered(choose(took, REPLICAS[:1], 0.0), now)
    for size in (TOKENS, TOKENS - 10, TOKENS - 20):
        attempts = Attempts(router, RoutePart(0, BLOCKS, size), limit=LIMIT, timeout=TIMEOUT)
        refuses(attempts, REPLICAS[:1], now, stated)
        lengths.append(next(seconds for seconds in range(100) if not router.stats("a").is_banned(now + seconds)))
        now += 100.0
    assert lengths == [1, 2, 4]


def test_after_a_failure_a_server_that_has_answered_before_is_asked_whatever_others_announce() -> None:
    silent = [Span(f"silent {number}", 0, BLOCKS, forward_rps=1e300) for number in range(6)]
    router, online = Router(), [*silent, REPLICAS[0]]
    answer(router, "a", 100.0)  # slowly
    attempts = attempts_of(router=router)
    assert choose(attempts, online, 0.0).segment.peer != "a"
    fails(attempts, LATE, online)
    assert choose(attempts, online, 0.0).segment.peer == "a"
    fails(attempts, LATE, online)
    assert choose(attempts, online, 0.0).segment.peer != "a", "it is banned"


@pytest.mark.parametrize(("error", "kind"), [(REFUSED, RefusedError), (WrongAnswer("nan"), ModelOutputError)])
def test_what_two_servers_agree_on_is_final(error: Exception, kind: type[Exception]) -> None:
    attempts = attempts_of()
    fails(attempts, error, REPLICAS)
    with pytest.raises(kind) as final:
        fails(attempts, error, REPLICAS)
    assert re.search(rf"blocks 0:4 \(peer \w\) and blocks 0:4 \(peer \w\): {re.escape(str(error))}$", str(final.value))
    assert len({span.peer for span in REPLICAS if f"(peer {span.peer})" in str(final.value)}) == 2
    assert not any(server.wrong_answers for server in attempts.router.servers.values()), "the request caused it"


def test_one_server_alone_is_asked_twice_and_stays_accused() -> None:
    attempts = attempts_of()
    fails(attempts, WrongAnswer("nan"), REPLICAS[:1])
    with pytest.raises(ModelOutputError):
        fails(attempts, WrongAnswer("nan"), REPLICAS[:1])
    assert attempts.router.stats("a").wrong_answers == 2


def test_each_wrong_answer_of_servers_that_agree_is_retracted() -> None:
    attempts, wrong = attempts_of(), WrongAnswer("nan")
    one, other = (Choice(span, TIMEOUT, REPLICAS, 0.0) for span in REPLICAS[:2])
    for choice in (one, one, other):
        attempts.router.stats(choice.segment.peer).failed(0.0, Failure.WRONG)
    for choice in (one, one):
        attempts.failed(choice, wrong, 0.0)
    with pytest.raises(ModelOutputError):
        attempts.failed(other, wrong, 0.0)
    assert not any(server.wrong_answers for server in attempts.router.servers.values())


def test_one_servers_word_is_not_enough_while_another_one_could_be_asked() -> None:
    attempts, first = attempts_of(), Choice(REPLICAS[0], TIMEOUT, REPLICAS, 0.0)
    for _ in range(LIMIT - 1):
        attempts.failed(first, REFUSED, 0.0)
    with pytest.raises(SwarmError, match=f"in {LIMIT} attempts"):
        attempts.failed(first, REFUSED, 0.0)


@pytest.mark.parametrize("error", [LATE, GONE])
def test_a_second_opinion_is_not_waited_for(error: Exception) -> None:
    avoided = [RouteSegment("a", 0, BLOCKS)]
    attempts = attempts_of(avoided)
    choice = choose(attempts, REPLICAS[:2], 0.0)
    assert choice.segment.peer == "b"
    with pytest.raises(SwarmError, match=r"^no second opinion for blocks 0:4 \(peer b\)$"):
        attempts.failed(choice, error, 0.0)
    with pytest.raises(SwarmError, match=r"^no second opinion for block 0$"):
        choose(attempts_of(avoided), [], 0.0)


def test_a_request_whose_caches_changed_chooses_again_and_no_attempt_is_counted() -> None:
    attempts = attempts_of()
    for _ in range(2 * LIMIT):
        assert 0.0 < fails(attempts, ChooseAgain("lost"), REPLICAS) < 0.1
    assert attempts.router.retries == 0 and not attempts.router.stats("a").failures


def answer(router: Router, peer: str, seconds: float) -> None:
    """Has a server answer a request, at time 0."""
    server = router.stats(peer)
    ticket = server.pacing.admit(TOKENS * BLOCKS, -seconds)
    assert isinstance(ticket, Ticket)
    server.pacing.answered(ticket, 0.0)
    server.answered(TOKENS * BLOCKS, -seconds, 0.0)


def router_with_latency(seconds: float) -> Router:
    router = Router()
    for span in REPLICAS:
        answer(router, span.peer, seconds)
    return router


def test_a_server_gets_less_time_where_another_one_holds_the_blocks_and_more_with_each_attempt() -> None:
    router = router_with_latency(0.01)
    attempts = attempts_of(router=router)
    assert choose(attempts, REPLICAS, 0.0).stall_timeout == _MIN_STALL_SECONDS
    assert choose(attempts, REPLICAS[:1], 0.0).stall_timeout == TIMEOUT, "nobody else could answer"
    waited = choose(attempts_of([RouteSegment("c", 0, BLOCKS)], router=router), REPLICAS[:1], 0.0)
    assert waited.stall_timeout == _MIN_STALL_SECONDS, "optional"
    attempts.failed(choose(attempts, REPLICAS, 0.0), LATE, 0.0)
    assert choose(attempts, REPLICAS, 0.0).stall_timeout == 2 * _MIN_STALL_SECONDS
    assert choose(attempts_of(router=router_with_latency(2.0)), REPLICAS, 0.0).stall_timeout == 20.0
    assert choose(attempts_of(router=router_with_latency(30.0)), REPLICAS, 0.0).stall_timeout == TIMEOUT
    assert choose(attempts_of(), REPLICAS, 0.0).stall_timeout == TIMEOUT, "no latency is known"


def test_a_server_that_has_not_answered_yet_gets_time_by_the_slowest_other_one() -> None:
    router, new = Router(), Span("new", 0, BLOCKS)
    for span, seconds in zip(REPLICAS, (0.01, 1.6), strict=False):
        answer(router, span.peer, seconds)
    attempts = attempts_of(router=router)
    assert attempts._usual_stall(new) == pytest.approx(16.0)
    quick = attempts_of(router=router_with_latency(0.01))
    assert quick._usual_stall(new) == 15.0
    quick.router.stats("new").failed(0.0, Failure.NO_ANSWER, lost=15.0)
    assert quick._usual_stall(new) == 30.0, "it may be a slow one"


def test_a_server_with_all_blocks_is_preferred_unless_it_is_banned() -> None:
    router = router_with_latency(10.0)  # the others look much faster
    halves = [Span("x", 0, 2), Span("y", 2, BLOCKS)]
    for peer in ("x", "y"):
        answer(router, peer, 1e-3)
    attempts = attempts_of(prefer_whole=True, router=router)
    assert choose(attempts, [REPLICAS[0], *halves], 11.0).segment.peer == "a"
    assert choose(attempts_of(router=router), [REPLICAS[0], *halves], 11.0).segment.peer == "x"
    fails(attempts, LATE, REPLICAS[:1], 11.0)
    assert choose(attempts, [REPLICAS[0], *halves], 11.0).segment.peer == "x"


def test_the_server_with_the_caches_of_the_moment_is_asked_while_it_is_there() -> None:
    holding = [Span("c", 0, BLOCKS)]
    part = RoutePart(0, BLOCKS, TOKENS, cached=lambda: holding)
    attempts = Attempts(router_with_latency(1.0), part, limit=LIMIT, timeout=1000.0)
    first = choose(attempts, REPLICAS, 0.0)
    assert first.segment is holding[0] and first.has_cache
    attempts.failed(first, LATE, 0.0)
    holding = []
    second = choose(attempts, REPLICAS, 0.0)
    assert not second.has_cache
    assert second.stall_timeout == 2 * first.stall_timeout
    holding = [Span("a", 0, BLOCKS)]  # another request found a server meanwhile
    assert choose(attempts, REPLICAS, 0.0).segment is holding[0]
    holding = [Span("gone", 0, BLOCKS)]
    assert choose(attempts, REPLICAS, 0.0).segment.peer in "abc"


def test_servers_without_room_are_asked_by_turns_and_then_it_is_said() -> None:
    attempts, error = attempts_of(), P2PHandlerError("Could not allocate 8192 bytes")
    for _ in range(LIMIT - 1):
        fails(attempts, error, REPLICAS)
    with pytest.raises(NoCacheError):
        fails(attempts, error, REPLICAS)


def test_a_limit_of_every_server_is_final() -> None:
    attempts, error = attempts_of(), P2PHandlerError("Cannot allocate KV cache for 3000 tokens, max = 2048")
    for _ in REPLICAS[1:]:
        fails(attempts, error, REPLICAS)
    with pytest.raises(NoCacheError, match="3000 tokens, max = 2048") as caught:
        fails(attempts, error, REPLICAS)
    assert not caught.value.transient


CHAINS = Announcement(dtype="bfloat16", version=ANNOUNCED)
ROUTE = [Span(peer, block, block + 1, CHAINS) for block, peer in enumerate("abcd")]


def chained(router: Router, *, has_ids: bool = False, block: int = 0) -> Attempts:
    part = RoutePart(block, BLOCKS, TOKENS, chained=True, has_ids=has_ids)
    return Attempts(router, part, limit=LIMIT, timeout=TIMEOUT)


def chain_of(choice: Choice) -> str:
    return "".join(span.peer for span in choice.chain)


@pytest.mark.parametrize(
    ("third", "expected"),
    [
        (CHAINS, "abcd"),
        (Announcement(dtype="float32", version=ANNOUNCED), "ab"),
        *((Announcement(dtype="bfloat16", version=version), "ab") for version in ("2.3.0+dist.eval", "2.2.0", None)),
    ],
)
def test_a_chain_is_the_longest_run_of_servers_that_can(third: Announcement, expected: str) -> None:
    router = Router()
    choice = choose(
        chained(router), [replace(span, announced=third) if span.peer == "c" else span for span in ROUTE], 0
    )
    assert chain_of(choice) == expected
    assert choice.patience == [TIMEOUT * left for left in range(len(expected), 0, -1)]
    assert choice.stall_timeout == choice.patience[0]
    assert not choose(Attempts(router, RoutePart(0, BLOCKS, TOKENS), limit=LIMIT, timeout=TIMEOUT), ROUTE, 0).chain


def test_a_server_is_in_a_chain_once() -> None:
    route = [Span("a", 0, 1, CHAINS), Span("b", 1, 2, CHAINS), Span("a", 2, BLOCKS, CHAINS)]
    assert chain_of(choose(chained(Router()), route, 0)) == "ab"


def test_servers_that_did_not_pass_a_request_on_are_not_used_as_a_chain_for_a_while() -> None:
    router = Router()
    attempts, hops = chained(router), [HopTimes(own=1.0)] * 2
    attempts.answered(choose(attempts, ROUTE, 0.0), 0.0, ChainAnswer(end=2, hops=hops, why=f"Error: {LACKS_PROMPTS}"))
    assert chain_of(choose(chained(router), ROUTE, 0.5)) == "abcd", "the next one is only to be sent prompts"
    attempts.answered(choose(attempts, ROUTE, 0.0), 0.0, ChainAnswer(end=2, hops=hops))
    assert chain_of(choose(chained(router), ROUTE, 0.5)) == "ab"
    assert chain_of(choose(chained(router, block=2), ROUTE, 0.5)) == "cd"
    assert chain_of(choose(chained(router), ROUTE, 2.0)) == "abcd"
    assert {peer: server.largest_answered for peer, server in router.servers.items()} == {
        **dict.fromkeys("ab", TOKENS),
        **dict.fromkeys("cd", 0),
    }
    assert not router.retries


@pytest.mark.parametrize("error", [WrongAnswer("shapes"), REFUSED])
def test_after_a_doubtful_failure_of_a_chain_its_servers_are_asked_one_by_one(error: Exception) -> None:
    router = Router()
    attempts = chained(router)
    choice = choose(attempts, ROUTE, 0.0)
    assert classify(error) in choice.doubtful
    assert attempts.failed(choice, error, 0.0) == 0.0
    again = choose(attempts, ROUTE, 0.0)
    assert (again.segment, again.chain, again.doubtful) == (ROUTE[0], [], [])
    assert chain_of(choose(chained(router), ROUTE, 0.0)) == "abc", "the next request tries a shorter one"
    assert not any(server.is_banned(0.0) for server in router.servers.values())


def test_what_a_server_alone_answers_is_its_own_unless_it_may_be_about_token_ids() -> None:
    whole = [Span("a", 0, BLOCKS, CHAINS)]
    choice = choose(chained(Router()), whole, 0.0)
    assert chain_of(choice) == "a" and not choice.doubtful
    assert choose(chained(Router(), has_ids=True), whole, 0.0).doubtful == [Failure.REFUSED]


def test_a_chain_whose_first_server_does_not_answer_is_that_servers_failure() -> None:
    attempts = chained(Router())
    replicas = [*ROUTE, Span("A", 0, 1, CHAINS)]
    first = choose(attempts, replicas, 0.0)
    assert classify(LATE) not in first.doubtful
    attempts.router.stats(first.segment.peer).failed(0.0, classify(LATE))
    assert attempts.failed(first, LATE, 0.0) == 0.0
    assert chain_of(choose(attempts, replicas, 0.0))[1:] == "bcd"
