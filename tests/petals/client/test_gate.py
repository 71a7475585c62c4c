"""The gate before a server: in which order requests are let in, and what happens to those that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from dist_eval.errors import NotSentError
from dist_eval.petals.client.failures import RequestDisplaced
from dist_eval.petals.client.gate import ConcurrencyLimit, Gate, RateLimiter
from dist_eval.petals.client.pacing import Pacing, Ticket

WORK = 100
ALONE = 0.3
"""Seconds until the answer to a request that is alone."""


async def start(*coroutines: Coroutine[Any, Any, Ticket]) -> list[asyncio.Task[Ticket]]:
    tasks = [asyncio.create_task(one) for one in coroutines]
    await asyncio.sleep(0)
    return tasks


def are_in(tasks: list[asyncio.Task[Ticket]]) -> list[bool]:
    return [task.done() and task.exception() is None for task in tasks]


def work_waiting(pacing: Pacing) -> float:
    """Returns the work that a further request would wait for, where each unit is expected to take a second."""
    return pacing.latency(0, time.monotonic(), expected=1.0)


def test_a_rate_limit_spaces_batches_until_it_is_closed() -> None:
    async def scenario() -> None:
        limiter, start = RateLimiter(1000.0), time.monotonic()
        for _ in range(3):
            await limiter.wait(100)
        assert time.monotonic() - start >= 0.2
        await limiter.wait(10**6)  # the next request has to wait for 1000 s
        new, begun = (asyncio.create_task(limiter.wait(100, is_new=is_new)) for is_new in (True, False))
        await asyncio.sleep(0.01)
        limiter.closed = True
        with pytest.raises(NotSentError):
            await new
        assert not begun.done()
        begun.cancel()

    asyncio.run(scenario())


def test_requests_are_let_in_in_their_order_as_answers_come() -> None:
    async def scenario() -> None:
        gate = Gate(ConcurrencyLimit(2, Pacing()))
        tasks = await start(*(gate.enter(WORK) for _ in range(5)))
        assert are_in(tasks) == [True, True, False, False, False]
        gate.answered(tasks[1].result(), time.monotonic())
        await asyncio.sleep(0)
        assert are_in(tasks) == [True, True, True, False, False]
        for task in (tasks[0], tasks[2]):
            gate.answered(task.result(), time.monotonic())
        assert [type(await task) for task in tasks] == [Ticket] * 5

    asyncio.run(scenario())


def test_a_request_is_let_in_when_the_server_should_soon_be_done() -> None:
    async def scenario() -> None:
        pacing = Pacing()
        gate = Gate(pacing)
        now = time.monotonic()
        first = pacing.admit(WORK, now - ALONE)
        assert isinstance(first, Ticket)
        pacing.answered(first, now)
        tasks = await start(*(gate.enter(WORK) for _ in range(3)))
        assert are_in(tasks) == [True, False, False]
        await asyncio.wait_for(tasks[1], 10)  # by the clock
        await asyncio.sleep(2 * ALONE)
        assert not are_in(tasks)[2], "until the first answer, which is late"
        gate.answered(tasks[0].result(), time.monotonic())
        await asyncio.wait_for(tasks[2], 10)

    asyncio.run(scenario())


@pytest.mark.parametrize(("admission", "let_in"), [(lambda: ConcurrencyLimit(2, Pacing()), 2), (Pacing, 1)])
def test_when_the_server_fails_those_that_wait_are_turned_away_and_the_next_one_is_let_in(
    admission: Any, let_in: int
) -> None:
    async def scenario() -> None:
        gate = Gate(admission())
        tasks = await start(*(gate.enter(WORK) for _ in range(4)))
        assert are_in(tasks) == [True] * let_in + [False] * (4 - let_in)
        gate.failed(tasks[0].result(), time.monotonic())
        await asyncio.sleep(0)
        assert [type(task.exception()) for task in tasks[let_in:]] == [RequestDisplaced] * (4 - let_in)
        (again,) = await start(gate.enter(WORK))
        assert isinstance(await asyncio.wait_for(again, 10), Ticket)

    asyncio.run(scenario())


def test_while_requests_wait_somebody_looks_again_and_may_displace_them() -> None:
    async def scenario() -> None:
        looks = []

        def look_again() -> None:
            looks.append(len(looks))
            if len(looks) == 3:
                gate.displace("another server is faster")

        pacing = Pacing()
        gate = Gate(pacing, look_again)
        pacing.admit(WORK, time.monotonic())  # whose answer never comes
        (waiting,) = await start(gate.enter(WORK))
        with pytest.raises(RequestDisplaced, match="faster"):
            await asyncio.wait_for(waiting, 10)
        assert len(looks) == 3 and 0 < work_waiting(pacing) <= WORK  # of the first one

    asyncio.run(scenario())


@pytest.mark.parametrize("is_let_in", [False, True])
def test_a_request_that_is_cancelled_leaves_its_place_to_others(is_let_in: bool) -> None:
    async def scenario() -> None:
        pacing = Pacing()
        gate = Gate(ConcurrencyLimit(1, pacing))
        first, second, third = await start(*(gate.enter(WORK) for _ in range(3)))
        if is_let_in:
            gate.answered(first.result(), time.monotonic())
        second.cancel()
        if not is_let_in:
            gate.answered(first.result(), time.monotonic())
        gate.answered(await asyncio.wait_for(third, 10), time.monotonic())
        assert second.cancelled() and work_waiting(pacing) == 0

    asyncio.run(scenario())


def test_steps_of_sessions_are_load_until_they_are_answered() -> None:
    async def scenario() -> None:
        pacing = Pacing()
        gate = Gate(ConcurrencyLimit(1, pacing))
        first, second = await start(*(gate.enter(WORK) for _ in range(2)))
        assert work_waiting(pacing) == 2 * WORK
        gate.failed(first.result(), time.monotonic())
        with pytest.raises(RequestDisplaced):
            await second
        assert work_waiting(pacing) == 0

    asyncio.run(scenario())
