"""A stream to one server that keeps the attention caches of some texts, so that each token is sent to it once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import torch

from dist_eval.swarm.petals_version import can_roll_back
from dist_eval.swarm.router import Span
from dist_eval.swarm.transport import Transport

_ALLOCATION_SECONDS = 3.0
"""Longest time that a server without room should wait for it; a client would then rather ask another one."""
_CLOSING_SECONDS = 2.0


class CacheLost(Exception):
    """The server has ended the stream: it does so after five minutes without a request, or half an hour in all."""


class ServerCache:
    """The caches of a number of texts on one server. Belongs to one event loop.

    Attributes:
        segment: the server and its blocks.
        position: tokens of each text that the caches hold.
    """

    def __init__(self, transport: Transport, segment: Span, prompts: torch.Tensor | None) -> None:
        self.segment, self.position = segment, 0
        self._transport, self._prompts = transport, prompts
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._head: dict[str, Any] | None = None
        self._answers: Any = None

    @classmethod
    async def open(
        cls, transport: Transport, segment: Span, max_length: int, prompts: torch.Tensor | None
    ) -> ServerCache:
        """Opens the stream; the server allocates the caches at the first step.

        Args:
            transport: the connection.
            segment: the server and its blocks.
            max_length: most tokens of a text.
            prompts: deep prompts of all blocks, of shape [blocks, pre_seq_len, hidden], or None. They are sent with the
                first step, which has to be longer.

        Raises:
            Exception: any of the daemon or the connection (see `failures.classify`).
        """
        cache = cls(transport, segment, prompts)
        metadata = {"max_length": max_length, "alloc_timeout": _ALLOCATION_SECONDS}
        cache._answers, cache._head = await transport.open_inference(segment, cache._sent(), metadata)
        return cache

    def can_step(self, position: int) -> bool:
        """Whether the texts may be continued at a position: at the end of what the caches hold, or before it."""
        if position == self.position:
            return True
        least = 0 if self._prompts is None else self._prompts.shape[1]
        return least <= position < self.position and can_roll_back(self.segment.announced.version)

    async def step(self, hidden: torch.Tensor, position: int) -> torch.Tensor:
        """Sends the next tokens of the texts.

        Args:
            hidden: the first block's inputs, float tensor of shape [rows, n, hidden].
            position: of the first of these tokens; whatever the caches hold from there on is forgotten.

        Returns:
            The last block's outputs, of the same shape, in the dtype that the server sent.

        Raises:
            CacheLost: the server has ended the stream.
            WrongAnswer: the answer has the wrong shape, or is not finite.
            Exception: any of the daemon, the connection or the server (see `failures.classify`).
        """
        from hivemind import MSGPackSerializer
        from hivemind.proto import runtime_pb2

        prompts = self._prompts if self._head else None
        tensors = await self._transport.inference_tensors(self.segment, hidden, prompts)
        fields, self._head = self._head, None
        if fields is None:
            fields = {"metadata": MSGPackSerializer.dumps({"start_from_position": position})}
            fields = fields if position != self.position else {}
        self._requests.put_nowait(runtime_pb2.ExpertRequest(tensors=tensors, **fields))
        try:
            answer = await self._answers.__anext__()
        except StopAsyncIteration:
            raise CacheLost from None
        outputs = await self._transport.inference_outputs(answer.tensors, hidden.shape)
        self.position = position + hidden.shape[1]
        return outputs

    async def close(self) -> None:
        """Ends the stream; the server then frees the memory."""
        from hivemind.proto import runtime_pb2

        self._requests.put_nowait(runtime_pb2.ExpertRequest())  # without tensors: there are no more
        self._requests.put_nowait(None)
        try:
            await asyncio.wait_for(self._answers.__anext__(), _CLOSING_SECONDS)
        except StopAsyncIteration:
            return
        except Exception:  # a server that is gone has nothing to free
            await self.drop()

    async def drop(self) -> None:
        """Cuts the connection, after a failure."""
        self._requests.put_nowait(None)
        with contextlib.suppress(Exception):  # of a connection that is lost anyway
            await self._answers.aclose()

    async def _sent(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not None:
            yield request
