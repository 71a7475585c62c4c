"""Tensors in messages as hivemind writes them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from hivemind.p2p import P2P
from hivemind.proto import runtime_pb2
from hivemind.utils.streaming import split_for_streaming
from hypothesis import strategies as st

PART_BYTES = 64
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.float64, torch.bool]


def tensors() -> st.SearchStrategy[torch.Tensor]:
    shapes = st.lists(st.integers(0, 7), min_size=1, max_size=3)
    return st.builds(
        lambda shape, dtype: torch.testing.make_tensor(*shape, dtype=dtype, device="cpu"),
        shapes,
        st.sampled_from(DTYPES),
    )


def serialized(tensor: torch.Tensor) -> Any:
    """Serializes a tensor by hivemind's code, which sends two bytes of bfloat16 in servers of Petals."""
    raw = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return runtime_pb2.Tensor(
        buffer=raw.numpy().tobytes(), size=tensor.shape, dtype=str(tensor.dtype).removeprefix("torch.")
    )


def messages_of(sent: Sequence[torch.Tensor], kind: Any, part_bytes: int = PART_BYTES, **fields: Any) -> list[Any]:
    """Splits tensors into messages by hivemind's code."""
    parts = (part for tensor in sent for part in split_for_streaming(serialized(tensor), part_bytes))
    return [kind(tensors=[part], **fields) for part in parts]


class Collector:
    """Takes the place of a stream that hivemind writes to."""

    def __init__(self) -> None:
        self.written = bytearray()

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        """There is nothing to wait for."""


def bytes_of(messages: Iterable[Any]) -> bytes:
    """Writes messages by hivemind's code."""
    collector = Collector()

    async def write() -> None:
        for message in messages:
            await P2P.send_protobuf(message, collector)

    asyncio.run(write())
    return bytes(collector.written)


def pieces_of(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places)]


async def everything(reader: asyncio.StreamReader) -> bytes:
    """Reads a connection to its end, which may be a reset: it is closed while bytes for it are under way."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while part := await reader.read(1 << 16):
            found += part
    return bytes(found)
