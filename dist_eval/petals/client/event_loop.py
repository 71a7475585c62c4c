"""Runs coroutines in the event loop of hivemind's client, which is in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine and returns its result; if this thread is interrupted meanwhile, the coroutine is cancelled."""
    from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

    task: asyncio.Task[Any] | None = None
    given_up = False

    async def as_task() -> Result:
        nonlocal task
        task = asyncio.current_task()
        if given_up:
            coroutine.close()
            raise asyncio.CancelledError
        return await coroutine

    try:
        result: Result = RemoteExpertWorker.run_coroutine(as_task(), return_future=True).result()
    except BaseException:  # an interrupt may come before `run_coroutine` returns
        given_up = True
        if task is not None and not task.done():
            task.get_loop().call_soon_threadsafe(task.cancel)
        raise
    return result
