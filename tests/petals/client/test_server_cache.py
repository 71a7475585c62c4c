"""A stream to a server that keeps attention caches; `test_inference_session.py` and `test_chain.py` have real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
import torch
from hivemind.utils.serializer import MSGPackSerializer

from dist_eval.petals.client.chain import ChainAnswer, ChainRequest, Hop, HopTimes
from dist_eval.petals.client.deep_prompts import NO_TENSOR, Packed
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.server_cache import ChainCut, SentStep, ServerCache
from dist_eval.petals.client.streams import Answer

PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


def answer_of(block: int, value: float) -> Answer:
    """Returns the answer of a chain that ended before a block."""
    ended = ChainAnswer(end=block, hops=[HopTimes(own=0.0)] * (block // 2), why="" if block == 4 else "it is gone")
    return Answer([Payload.of(torch.full((1, 2, 4), value))], MSGPackSerializer.dumps(ended.packed()))


def test_every_answer_after_a_cut_chain_is_known_as_such_however_many_come_at_once() -> None:
    request = ChainRequest(chain=[Hop(peer=PEER, start=2, end=4, patience=9.0)])
    all_sent = asyncio.Event()

    async def answers(_: Any) -> AsyncIterator[Answer]:
        await all_sent.wait()
        for block, value in ((4, 1.0), (2, 2.0), (2, 3.0), (4, 4.0)):
            yield answer_of(block, value)
        await asyncio.sleep(60)

    async def outputs(tensors: list[Payload], shape: torch.Size) -> torch.Tensor:
        (one,) = tensors
        return one.tensor().view(shape)

    async def outcomes() -> list[Any]:
        transport: Any = SimpleNamespace(
            session_tensors=AsyncMock(return_value=[]), session_head=lambda *_: {}, session_outputs=outputs
        )
        stream: Any = MagicMock(answers=answers)
        segment: Any = SimpleNamespace(end=2)
        cache = ServerCache(transport, stream, segment, 9, Packed(NO_TENSOR), rolls_back=True)
        inputs = Inputs.of(torch.zeros(1, 2, 4))
        steps: list[SentStep] = [await cache.send(inputs, 2 * place, request) for place in range(4)]
        all_sent.set()
        await steps[-1].answer
        found = await asyncio.gather(*map(cache.outputs, steps), return_exceptions=True)
        assert cache.end == 4
        await cache.drop()
        return found

    first, *cut, last = asyncio.run(outcomes())
    assert first.unique().tolist() == [1.0] and last.unique().tolist() == [4.0]
    for error, value in zip(cut, (2.0, 3.0), strict=True):
        assert isinstance(error, ChainCut) and (error.answer.end, error.answer.why) == (2, "it is gone")
        assert error.outputs[0].tensor().unique().tolist() == [value]


@pytest.mark.parametrize("reason", ["busy: too many sessions", ""])
def test_texts_that_are_sent_in_steps_fail_with_the_servers_reason(reason: str) -> None:
    async def answers(_: Any) -> AsyncIterator[Answer]:
        for _ in ():
            yield answer_of(2, 0.0)
        if reason:
            raise RuntimeError(reason)

    async def tensors(*_: Any, **__: Any) -> list[Any]:
        await asyncio.sleep(0.05)  # meanwhile the server ends the stream
        return []

    async def send() -> None:
        transport: Any = SimpleNamespace(session_tensors=tensors, session_head=lambda *_: {})
        stream: Any = MagicMock(answers=answers)
        segment: Any = None
        cache = ServerCache(transport, stream, segment, 9, Packed(NO_TENSOR), rolls_back=False)
        await cache.answers([(Inputs.of(torch.zeros(1, 2, 4)), None)] * 2, 5.0)

    with pytest.raises((RuntimeError, ConnectionResetError), match=reason or "the server has ended the stream"):
        asyncio.run(send())
