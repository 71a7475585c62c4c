"""Deep prompts of requests; `test_chain.py` sends them to servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dist_eval.petals.client import deep_prompts
from dist_eval.petals.client.deep_prompts import DeepPrompts, RecentPrompts
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.routes import Span

SHAPE = 4, 3, 8


def sent(prompts: DeepPrompts, span: Span) -> torch.Tensor:
    return asyncio.run(prompts.packed(span)).payload.tensor()


def by_a_fused_optimizer(tensor: torch.Tensor) -> None:
    leaf = torch.nn.Parameter(torch.empty(0))
    leaf.data, leaf.grad = tensor, torch.ones_like(tensor)
    torch.optim.AdamW([leaf], lr=0.5, fused=True).step()


def by_its_data(tensor: torch.Tensor) -> None:
    tensor.data += 1


@pytest.mark.parametrize("change", [by_a_fused_optimizer, by_its_data])
def test_prompts_are_found_again_until_they_change(change: Callable[[torch.Tensor], None]) -> None:
    recent, tensor, span = RecentPrompts(), torch.ones(SHAPE), Span("peer", 1, 3)
    before = recent.of(tensor)
    assert recent.of(tensor) is recent.of(tensor.clone()) is before
    version = tensor._version
    change(tensor)
    assert tensor._version == version, "PyTorch does not count such a change"
    after = recent.of(tensor)
    assert torch.equal(sent(after, span)[:, 0], tensor[1:3])
    assert torch.equal(sent(before, span)[:, 0], torch.ones(SHAPE)[1:3]), "of a request that is under way"
    assert recent.of(torch.ones(SHAPE)) is before
    assert recent.of(None).tensor is None


def test_views_of_the_same_memory_are_told_apart() -> None:
    recent, whole = RecentPrompts(), torch.randn(SHAPE)
    assert recent.of(whole[:2]) is not recent.of(whole[::2])
    assert recent.of(whole) is not recent.of(whole.to(torch.bfloat16))


def test_prompts_are_packed_once_for_all_blocks_and_dtype_and_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packs = list[str | None]()
    pack = deep_prompts._pack

    def noted(tensor: torch.Tensor, dtype: str | None) -> Any:
        packs.append(dtype)
        if len(packs) == 1:
            raise MemoryError
        return pack(tensor, dtype)

    monkeypatch.setattr(deep_prompts, "_pack", noted)
    tensor = torch.randn(SHAPE)

    async def sent_to_all() -> None:
        prompts = DeepPrompts(tensor)
        with pytest.raises(MemoryError):
            await prompts.packed(Span("peer", 0, 1))
        parts = [(0, 4), (0, 1), (1, 3), (3, 4)]
        found = await asyncio.gather(*(prompts.packed(Span("peer", *part)) for part in parts))
        for one, (start, end) in zip(found, parts, strict=True):
            assert torch.equal(one.payload.tensor()[:, 0], tensor[start:end])
            assert one.digests == found[0].digests[start:end] and len(set(one.digests)) == end - start
            assert one.omitted().payload == Payload.of(deep_prompts.NO_TENSOR)

    asyncio.run(sent_to_all())
    assert packs == [None, None]
