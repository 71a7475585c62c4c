"""Sessions that are passed on; `tests/petals/client/test_chain.py` has real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import torch
from async_timeout import timeout
from hivemind.utils.serializer import MSGPackSerializer

from dist_eval.petals.client.chain import ChainAnswer, ChainRequest, Hop, HopTimes
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.server_cache import ChainCut
from dist_eval.petals.client.streams import Answer
from dist_eval.petals.server.chained_session import SESSION_OVER, ChainedSession
from dist_eval.petals.server.metadata import Refused
from dist_eval.petals.server.request import Request

PEERS = ["QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "QmT78zSuBmuS4z925WZfrqQ1qHaJ56DQaTfyMUF7F8ff5o"]
REQUEST = ChainRequest(
    chain=[Hop(peer=peer, start=2 + 2 * place, end=4 + 2 * place, patience=9.0) for place, peer in enumerate(PEERS)]
)
HIDDEN, ORDER = torch.ones(1, 2, 4), torch.empty(0, dtype=torch.int64)


async def session_with(named: Callable[..., Coroutine[Any, Any, Any]]) -> ChainedSession:
    """Returns a session on blocks 0 and 1 with one step; `named` finds the next server."""
    handler = SimpleNamespace(
        module_backends={f"m.{block}": SimpleNamespace(name=f"m.{block}", dtype=torch.float32) for block in (0, 1)},
        _check_uids=str.split,
        _get_active_adapter=lambda _: None,
        request_timeout=9.0,
    )
    servers: Any = SimpleNamespace(named=named)
    session = ChainedSession(handler, servers, None, "m.0 m.1", REQUEST, {"max_length": 9})
    tensors = [Payload.of(tensor) for tensor in (HIDDEN, torch.empty(0), ORDER)]
    await session.own_step(Request("m.0 m.1", tensors, MSGPackSerializer.dumps(REQUEST.packed())), REQUEST)
    return session


async def own_answers(seconds: float) -> AsyncGenerator[Answer, None]:
    async with timeout(seconds):
        yield Answer([Payload.of(HIDDEN)], b"")
        await asyncio.sleep(60)


def test_a_session_that_reaches_its_time_limit_while_a_step_is_passed_on_says_so() -> None:
    async def run() -> None:
        async def named(*_: Any, **__: Any) -> Any:
            await asyncio.sleep(60)

        session = await session_with(named)
        async for _ in session.answers(own_answers(0.1)):
            pytest.fail("there is no answer")

    with pytest.raises(Refused, match=SESSION_OVER):
        asyncio.run(asyncio.wait_for(run(), 10))


def test_the_answer_of_a_server_that_lost_the_one_after_it_is_passed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = ChainCut(ChainAnswer(end=4, hops=[HopTimes(own=1.0)], why="the third is gone"), [Payload.of(3 * HIDDEN)])
    cache = SimpleNamespace(
        position=0, failure=None, send=AsyncMock(), answer_to=AsyncMock(side_effect=cut), drop=AsyncMock()
    )

    async def answered() -> Answer:
        session = await session_with(AsyncMock())
        monkeypatch.setattr(session, "_open_next", AsyncMock(return_value=cache))
        answers = session.answers(own_answers(5.0))
        found = await anext(answers)
        await answers.aclose()
        return found

    found = asyncio.run(asyncio.wait_for(answered(), 10))
    ended = ChainAnswer.model_validate(MSGPackSerializer.loads(found.metadata))
    assert (ended.end, len(ended.hops), ended.why) == (4, 2, "the third is gone")
    assert torch.equal(found.tensors[0].tensor(), 3 * HIDDEN)
    cache.drop.assert_awaited_once()
