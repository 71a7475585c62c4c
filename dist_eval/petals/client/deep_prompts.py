"""Deep prompts of requests: servers keep them for a while, so a digest of each block's prompts can replace them.

A client sends prompts to a server until a request with them has been answered, and only their digests after that. A
server that has dropped them refuses the request in words that clients know (`failures.py`), and gets them again.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from dist_eval.petals.client.outputs import DTYPES
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.routes import Span

KEPT_TOKENS = 1024
"""Most tokens of deep prompts that a server keeps for each of its blocks. Petals' recipes have 16, so there is room for
64 tunings, in 1 % of the size of the weights of a block of Llama 3 70B."""

_RECENT = 4  # prompts that a client uses alternately, such as those of several models

NO_TENSOR = torch.empty(0)
"""Sent if a request has no prompts, or digests replace them."""


def digests_of(prompts: torch.Tensor) -> list[bytes]:
    """Returns the SHA-256 of each block's prompts, over their bytes, shape and dtype.

    `prompts` has shape [blocks, rows, pre_seq_len, hidden].
    """
    digests = []
    for of_block in prompts.detach().cpu():
        digest = hashlib.sha256(f"{of_block.dtype} {list(of_block.shape)}\n".encode())
        digest.update(of_block.contiguous().view(-1).view(torch.uint8).numpy().data)
        digests.append(digest.digest())
    return digests


class Packed:
    """Serialized deep prompts of some blocks.

    The tensor has shape [blocks, 1, pre_seq_len, hidden], and is contiguous and on the CPU; it is empty if there are no
    prompts. `digests` has one for each block; it is empty if digests are not used.
    """

    def __init__(self, tensor: torch.Tensor, digests: Sequence[bytes] = ()) -> None:
        self.payload, self.digests, self._tensor = Payload.of(tensor), list(digests), tensor

    def part(self, start: int, end: int) -> Packed:
        """Returns those of fewer blocks, in the same memory."""
        return Packed(self._tensor[start:end], self.digests[start:end])

    @property
    def tokens(self) -> int:
        """Number of prompts of each block."""
        return self._tensor.shape[2] if self._tensor.numel() else 0

    def omitted(self) -> Packed:
        """Returns a copy that sends an empty tensor, for servers that keep these prompts."""
        empty = copy.copy(self)
        empty.payload = Payload.of(NO_TENSOR)
        return empty

    @property
    def is_omitted(self) -> bool:
        """Whether there are prompts, and an empty tensor is sent."""
        return self.tokens > 0 and not self.payload.data

    def of(self, chain: Sequence[Span]) -> Iterator[tuple[Span, list[bytes]]]:
        """Yields each server of a chain with these blocks, and the digests of its own blocks."""
        for span in chain:
            yield span, self.digests[span.start - chain[0].start : span.end - chain[0].start]


class DeepPrompts:
    """Deep prompts, serialized and hashed once, and the servers that keep them.

    The tensor has shape [blocks, pre_seq_len, hidden] and must not change; None for no prompts.
    """

    def __init__(self, tensor: torch.Tensor | None = None) -> None:
        self.tensor = tensor
        self._packed: dict[str | None, Packed] = {}  # of all blocks, by dtype
        self._packing = asyncio.Lock()
        self._kept: set[tuple[Any, bytes]] = set()  # servers and the digests of the prompts that they keep

    async def packed(self, segment: Span) -> Packed:
        """Returns the prompts of some blocks, in the dtype of their server."""
        if self.tensor is None:
            return Packed(NO_TENSOR)
        async with self._packing:
            if segment.dtype not in self._packed:
                self._packed[segment.dtype] = await asyncio.to_thread(_pack, self.tensor, segment.dtype)
        return self._packed[segment.dtype].part(segment.start, segment.end)

    def are_kept(self, chain: Sequence[Span], prompts: Packed) -> bool:
        """Whether there is a chain, and all its servers have answered requests with these prompts."""
        sent = [(span.peer, digest) for span, own in prompts.of(chain) for digest in own]
        return bool(sent) and self._kept.issuperset(sent)

    def answered(self, chain: Sequence[Span], prompts: Packed, end: int) -> None:
        """Records that servers answered up to a block; those after it get the prompts again."""
        for span, own in prompts.of(chain):
            sent = [(span.peer, digest) for digest in own]
            (self._kept.update if span.end <= end else self._kept.difference_update)(sent)


def _pack(tensor: torch.Tensor, dtype: str | None) -> Packed:
    # the server broadcasts a batch of 1, and casts to a dtype that is unknown here
    prompts = tensor.unsqueeze(1).to("cpu", DTYPES.get(dtype or "", tensor.dtype)).contiguous()
    return Packed(prompts, digests_of(prompts) if 0 < prompts.shape[2] <= KEPT_TOKENS else ())


class RecentPrompts:
    """Finds the `DeepPrompts` of equal tensors again. Thread-safe."""

    def __init__(self) -> None:
        self._recent = list[DeepPrompts]()  # the latest one comes last
        self._lock = threading.Lock()

    def of(self, tensor: torch.Tensor | None) -> DeepPrompts:
        """Returns the same object for equal deep prompts, of shape [blocks, pre_seq_len, hidden].

        They are compared by their values: fused optimizers change a tensor without a trace.
        """
        if tensor is None:
            return DeepPrompts()
        with self._lock:
            equal = (one for one in reversed(self._recent) if _is_equal(one.tensor, tensor))
            if (found := next(equal, None)) is None:
                found = DeepPrompts(tensor.detach().clone())
            self._recent = [*(one for one in self._recent if one is not found), found][-_RECENT:]
        return found


def _is_equal(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and (one.dtype, one.device) == (other.dtype, other.device) and torch.equal(one, other)
