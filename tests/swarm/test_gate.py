"""The gate before a server: how many are let in, in which order, and what happens to those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dist_eval.swarm.gate import Gate, TurnedAway

ALONE = 1.0
"""Seconds until the answer to a request that is alone."""


async def start(*coroutines: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(one) for one in coroutines]
    await asyncio.sleep(0)
    return tasks


async def opened(size: int) -> Gate:
    """Returns a gate that has learned to let in several, with none inside."""
    gate = Gate()
    while gate.size < size:
        await gate.enter()
        gate.answered(ALONE)
    return gate


def test_the_first_request_goes_alone_and_the_next_ones_follow_in_their_order() -> None:
    async def scenario() -> None:
        gate = Gate()
        first, *others = await start(*(gate.enter() for _ in range(5)))
        assert [first.done(), *(one.done() for one in others)] == [True, False, False, False, False]
        gate.answered(ALONE)
        await asyncio.sleep(0)
        assert gate.size == 2
        assert [one.done() for one in others] == [True, True, False, False]

    asyncio.run(scenario())


@pytest.mark.parametrize("capacity", [1, 2, 5, 12])
def test_as_many_are_let_in_as_the_server_can_use_and_about_one_more(capacity: int) -> None:
    """A server of this capacity answers in the same time to any number of requests up to it, more of them wait."""

    async def scenario() -> None:
        gate = Gate()
        tasks = await start(*(gate.enter() for _ in range(2000)))
        sizes = []
        for done in range(1900):
            gate.answered(ALONE * max(1.0, gate.size / capacity))
            await asyncio.sleep(0)
            sizes.append(gate.size)
            assert sum(task.done() for task in tasks) <= done + 1 + max(sizes)
        usual = sorted(sizes[200:])[850]
        assert capacity <= usual <= capacity + 2
        gate.failed()
        assert all(isinstance(one, TurnedAway | None) for one in await asyncio.gather(*tasks, return_exceptions=True))

    asyncio.run(scenario())


def test_when_the_server_fails_those_that_wait_are_turned_away_and_the_next_one_is_let_in() -> None:
    async def scenario() -> None:
        gate = await opened(2)
        tasks = await start(*(gate.enter() for _ in range(4)))
        gate.failed()
        await asyncio.sleep(0)
        assert [task.done() and task.exception() is None for task in tasks] == [True, True, False, False]
        assert all(isinstance(task.exception(), TurnedAway) for task in tasks[2:])
        (again,) = await start(gate.enter())
        assert again.done(), "one of the two has left"
        (waiting,) = await start(gate.enter())
        assert not waiting.done()
        gate.answered(ALONE)
        await waiting

    asyncio.run(scenario())
