"""Lines before servers: in which order requests are sent, and what happens to those that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest
from simulated_swarm import BEGIN, SimulatedLoop

from dist_eval.petals.client.admission import STEPS
from dist_eval.petals.client.attempts import Choice
from dist_eval.petals.client.failures import PeerUnreachable
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.turns import Request, Turn, Turns

WORK = 100
ONE, OTHER = Span("one", 0, 4), Span("other", 0, 4)


def simulated(scenario: Callable[[Turns], Coroutine[Any, Any, None]]) -> Turns:
    """Runs a scenario in simulated time; returns the lines before two servers that nobody has measured."""
    turns, loop = Turns(Router()), SimulatedLoop()
    try:
        loop.run_until_complete(scenario(turns))
    finally:
        loop.close()
    return turns


def now() -> float:
    return asyncio.get_running_loop().time() - BEGIN


def asking(*spans: Span, has_cache: bool = False) -> Callable[[int], Iterator[Choice]]:
    return lambda _: iter([Choice(span, 60.0, spans, now(), has_cache) for span in spans])


def taking(seconds: float, error: Exception | None = None) -> Callable[[Choice], Request]:
    """Returns a function that makes requests which take this long."""

    async def send(stall_timeout: float) -> str:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return "answer"

    return lambda _: Request(send, WORK)


def work_ahead(turns: Turns, span: Span) -> float:
    """Returns the work that a further request would wait for, where each unit is expected to take a second."""
    return turns._router.stats(span.peer).pacing.outlook(time.monotonic(), expected=1.0).latency(0)


async def waiting(
    turns: Turns, count: int, choices: Callable[[int], Iterator[Choice]], make: Callable[[Choice], Request]
) -> list[asyncio.Task[Turn]]:
    tasks = [asyncio.create_task(turns.wait("line", choices, make)) for _ in range(count)]
    await asyncio.sleep(0.01)
    return tasks


def are_in(tasks: Sequence[asyncio.Task[Turn]]) -> list[bool]:
    return [task.done() and not task.cancelled() and task.exception() is None for task in tasks]


def test_requests_are_sent_in_their_order_as_answers_come() -> None:
    async def scenario(turns: Turns) -> None:
        tasks = await waiting(turns, STEPS + 3, asking(ONE, has_cache=True), taking(1.0))
        assert are_in(tasks) == [True] * STEPS + [False] * 3
        sent = [asyncio.create_task(turns.send(task.result())) for task in tasks[:2]]
        assert [await answer for answer in sent] == ["answer"] * 2
        await asyncio.sleep(0.1)
        assert are_in(tasks) == [True] * (STEPS + 2) + [False]
        tasks[-1].cancel()
        await asyncio.wait(tasks)

    assert simulated(scenario).answers == 2


def test_a_request_is_sent_when_the_server_should_soon_be_done() -> None:
    async def scenario(turns: Turns) -> None:
        await turns.send(await turns.wait("line", asking(ONE), taking(1.0)))
        tasks = await waiting(turns, 3, asking(ONE), taking(1.0))
        began = now()
        assert are_in(tasks) == [True, False, False]
        await tasks[1]
        assert 0.5 < now() - began < 1.0
        await asyncio.sleep(5.0)
        assert not tasks[2].done(), "until the first answer, which is late"
        await turns.send(tasks[0].result())
        await tasks[2]

    simulated(scenario)


def test_the_first_server_that_can_use_a_request_gets_it() -> None:
    async def scenario(turns: Turns) -> None:
        first, second, third = await waiting(turns, 3, asking(ONE, OTHER), taking(1.0))
        assert [task.result().choice.segment for task in (first, second)] == [ONE, OTHER]
        assert not third.done()
        await turns.send(second.result())
        assert (await third).choice.segment == OTHER

    simulated(scenario)


def test_a_request_chooses_when_it_is_sent_and_knows_how_many_wait_behind_it() -> None:
    async def scenario(turns: Turns) -> None:
        chosen, behind = [ONE], list[int]()

        def choices(count: int) -> Iterator[Choice]:
            behind.append(count)
            return asking(*chosen)(count)

        first, second, third = await waiting(turns, 3, choices, taking(1.0, PeerUnreachable("gone")))
        assert are_in([first, second, third]) == [True, False, False]
        chosen[:] = [OTHER]
        with pytest.raises(PeerUnreachable):
            await turns.send(first.result())
        assert (await second).choice.segment == OTHER
        assert await third
        assert (behind[0], max(behind), behind[-1]) == (0, 1, 0)

    simulated(scenario)


def test_servers_that_other_ranks_have_measured_are_chosen_though_there_is_no_answer() -> None:
    async def scenario(turns: Turns) -> None:
        chosen = [ONE]
        _, second = await waiting(turns, 2, lambda count: asking(*chosen)(count), taking(1.0))
        chosen[:] = [OTHER]
        assert (await asyncio.wait_for(second, 0.5)).choice.segment == OTHER

    simulated(scenario)


def test_an_error_of_the_choice_ends_the_request_and_the_next_one_chooses() -> None:
    async def scenario(turns: Turns) -> None:
        def fail(_: int) -> Iterator[Choice]:
            raise LookupError("no server")

        with pytest.raises(LookupError):
            await turns.wait("line", fail, taking(1.0))
        assert await turns.wait("line", asking(ONE), taking(1.0))
        assert not turns._lines

    simulated(scenario)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_request_that_is_cancelled_leaves_its_place_to_others(is_first: bool) -> None:
    async def scenario(turns: Turns) -> None:
        tasks = await waiting(turns, 4, asking(ONE), taking(1.0))
        tasks[1 if is_first else 2].cancel()
        await turns.send(tasks[0].result())
        left = tasks[2 if is_first else 1]
        await turns.send(await left)
        await turns.send(await tasks[3])
        assert work_ahead(turns, ONE) == 0

    simulated(scenario)


def test_a_request_that_is_given_up_while_it_is_answered_is_no_fault_of_the_server() -> None:
    async def scenario(turns: Turns) -> None:
        (task,) = await waiting(turns, 1, asking(ONE), taking(9.0))
        sending = asyncio.create_task(turns.send(task.result()))
        await asyncio.sleep(1.0)
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled() and work_ahead(turns, ONE) == 0

    turns = simulated(scenario)
    assert turns._router.stats(ONE.peer).failures == 0


def test_steps_of_sessions_are_load_until_they_are_answered() -> None:
    async def scenario(turns: Turns) -> None:
        first, second = await waiting(turns, 2, asking(ONE, has_cache=True), taking(1.0, PeerUnreachable("gone")))
        assert work_ahead(turns, ONE) == 2 * WORK
        for task in (first, second):
            with pytest.raises(PeerUnreachable):
                await turns.send(task.result())
        assert work_ahead(turns, ONE) == 0

    simulated(scenario)
