"""Runs coroutines in the event loop of hivemind's client, which is in a thread of its own."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine and returns its result; if this thread is interrupted meanwhile, the coroutine is cancelled."""
    from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

    future = RemoteExpertWorker.run_coroutine(coroutine, return_future=True)
    try:
        result: Result = future.result()
    except BaseException:
        future.cancel()
        raise
    return result
