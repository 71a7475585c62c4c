"""Coroutines in the event loop of hivemind's client."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from conftest import wait_for
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

from dist_eval.petals.client import event_loop


@pytest.mark.parametrize("has_begun", [True, False])
def test_an_interrupt_cancels_the_coroutine_even_before_its_future_is_known(
    has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_coroutine, events = RemoteExpertWorker.run_coroutine, list[str]()

    async def coroutine() -> None:
        events.append("begun")
        try:
            await asyncio.sleep(60)
        finally:
            events.append("cancelled")

    async def block() -> None:
        time.sleep(0.2)

    def interrupted(one: Any, return_future: bool) -> None:
        if not has_begun:
            run_coroutine(block(), return_future=True)
        run_coroutine(one, return_future=return_future)
        if has_begun:
            assert wait_for(lambda: events)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RemoteExpertWorker, "run_coroutine", interrupted)
        event_loop.run(coroutine())
    run_coroutine(asyncio.sleep(0), return_future=False)  # after all that was scheduled before
    assert events == (["begun", "cancelled"] if has_begun else [])
