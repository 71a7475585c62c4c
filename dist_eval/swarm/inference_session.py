"""A session: texts that are sent piece by piece, while servers keep the attention caches of what they were sent before.

One server after another computes its blocks of a piece, as with a forward. The first block's inputs of each segment are
kept here: if a server fails, leaves, or has no room, another one is sent the texts from their beginning, and nothing
else is lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from dist_eval.data.answers import RouteSegment
from dist_eval.errors import NoCacheError
from dist_eval.swarm.attempts import RoutePart, TooLarge
from dist_eval.swarm.router import Routing, Span
from dist_eval.swarm.server_cache import CacheLost, ServerCache

if TYPE_CHECKING:
    from dist_eval.swarm.requests import SwarmRequests

REQUEST_TOKENS = 1024
"""Most tokens in a message, as in Petals' own micro-batches: servers accept 2048 or more."""


@dataclass
class _Segment:
    """Consecutive blocks whose caches are on one server, if on any.

    Attributes:
        start: the first block.
        end: one past the last block.
        sent: inputs of the first block for all positions so far, in pieces of shape [rows, n, hidden].
        cache: the stream to the server.
    """

    start: int
    end: int
    sent: list[torch.Tensor] = field(default_factory=list)
    cache: ServerCache | None = None

    def cut(self, position: int) -> None:
        """Forgets the inputs from a position on."""
        kept = []
        for piece in self.sent:
            if position > 0:
                kept.append(piece[:, :position])
            position -= piece.shape[1]
        self.sent = kept

    async def close(self) -> None:
        """Gives the server's memory back."""
        cache, self.cache = self.cache, None
        if cache is not None:
            await cache.close()


class InferenceSession:
    """Texts that are sent to a swarm piece by piece. To be used by one thread, as a context.

    Args:
        requests: sends to the swarm.
        rows: number of texts.
        max_length: most tokens of a text, prompts included; servers reserve memory for them.
        prompts: deep prompts of shape [blocks, pre_seq_len, hidden], or None; the first step has to be longer.

    Attributes:
        position: tokens of each text that were sent so far.
    """

    def __init__(
        self, requests: SwarmRequests, *, rows: int, max_length: int, prompts: torch.Tensor | None = None
    ) -> None:
        self.position = 0
        self._requests, self._rows, self._max_length, self._prompts = requests, rows, max_length, prompts
        self._piece = max(1, REQUEST_TOKENS // rows, 0 if prompts is None else prompts.shape[1])
        self._segments = [_Segment(0, requests.num_blocks)]
        self._servers: dict[RouteSegment, None] = {}

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def step(self, hidden: torch.Tensor, start: int | None = None, routing: Routing | None = None) -> torch.Tensor:
        """Sends the next tokens of the texts through all blocks.

        Args:
            hidden: the first block's inputs, float tensor of shape [rows, n, hidden].
            start: position of the first of these tokens: whatever was sent from there on is forgotten. By default they
                follow what was sent. Servers with Petals 2.2 cannot forget: they are sent the whole texts.
            routing: records the servers that have computed these tokens and those before them.

        Returns:
            The last block's outputs for these tokens, of the same shape and dtype.

        Raises:
            ValueError: the texts would become longer than the session, or `start` is behind their end.
            NoCacheError: no server has room for the caches; not a transient one if a server takes smaller steps only.
            EvaluationError: see `SwarmRequests.forward`.
        """
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        start = self.position if start is None else start
        if not 0 <= start <= self.position or start + hidden.shape[1] > self._max_length:
            raise ValueError(
                f"{hidden.shape[1]} tokens at position {start} of a session of at most {self._max_length} tokens, of "
                f"which {self.position} were sent."
            )
        try:
            return RemoteExpertWorker.run_coroutine(self._step(hidden, start, routing or Routing())).to(hidden)
        except TooLarge as error:
            refused = NoCacheError(f"steps of sessions are larger than a server accepts ({error})")
            refused.transient = False
            raise refused from error

    def close(self) -> None:
        """Gives the servers' memory back."""
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        RemoteExpertWorker.run_coroutine(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(segment.close() for segment in self._segments), return_exceptions=True)

    async def _step(self, hidden: torch.Tensor, start: int, routing: Routing) -> torch.Tensor:
        self.position = start
        if start == 0:
            self._servers.clear()
        for segment in self._segments:
            segment.cut(start)
        await self._requests.rate_limiter.wait(hidden.shape[0] * hidden.shape[1])
        outputs = [await self._through_all(piece) for piece in self._pieces(hidden)]
        routing.route.extend(self._servers)
        return torch.cat(outputs, dim=1)

    async def _through_all(self, piece: torch.Tensor) -> torch.Tensor:
        inputs, number = piece, 0
        sent: list[tuple[_Segment, torch.Tensor]] = []
        while number < len(self._segments):
            segment = self._segments[number]
            sent.append((segment, inputs))
            inputs = await self._through(segment, inputs, number)
            number += 1
        for segment, piece in sent:
            segment.sent.append(piece)
        self.position += piece.shape[1]
        return inputs

    async def _through(self, segment: _Segment, piece: torch.Tensor, number: int) -> torch.Tensor:
        """Sends a piece through a segment, whose end may then be an earlier block."""
        if segment.cache is not None and not segment.cache.can_step(self.position):
            await segment.close()
        warm, tokens = segment.cache, self._rows * piece.shape[1]
        from_beginning = self._rows * self.position + tokens

        def make_request(span: Span) -> tuple[Coroutine[Any, Any, Any], int]:
            blocks = span.end - span.start
            if segment.cache is not None and span is segment.cache.segment:
                return self._continued(segment, piece), tokens * blocks
            return self._opened(span, segment, piece), from_beginning * blocks

        part = RoutePart(
            *(segment.start, segment.end, tokens if warm else from_beginning),
            cached=warm.segment if warm else None,
            messages=1 + -(-self.position // self._piece),
        )
        span, (cache, outputs) = await self._requests.send_with_retries(make_request, part)
        segment.cache = cache
        self._servers[RouteSegment(str(span.peer), span.start, span.end, span.announced.precision)] = None
        if span.end < segment.end:
            before = outputs[:, : -piece.shape[1]]
            sizes = [one.shape[1] for one in segment.sent]
            rest = _Segment(span.end, segment.end, list(torch.split(before, sizes, dim=1)) if sizes else [])
            self._segments.insert(number + 1, rest)
            segment.end = span.end
        return outputs[:, -piece.shape[1] :]

    def _pieces(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Splits the tokens of texts into those of one message each."""
        return list(torch.split(hidden, self._piece, dim=1)) if hidden.shape[1] else []

    def _again(self, sent: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns what to send again: the same pieces, for the same bits, but generated tokens together."""
        pieces: list[torch.Tensor] = []
        for is_token, some in itertools.groupby(sent, lambda piece: piece.shape[1] == 1):
            part = list(some)
            pieces += self._pieces(torch.cat(part, dim=1)) if is_token else part
        return pieces

    async def _continued(self, segment: _Segment, piece: torch.Tensor) -> tuple[ServerCache, torch.Tensor]:
        cache, segment.cache = segment.cache, None
        assert cache is not None
        try:
            return cache, await cache.step(piece, self.position)
        except CacheLost:
            return await self._opened(cache.segment, segment, piece)
        except BaseException:
            await cache.drop()
            raise

    async def _opened(self, span: Span, segment: _Segment, piece: torch.Tensor) -> tuple[ServerCache, torch.Tensor]:
        """Has a server compute all of the texts so far; returns the outputs for all positions."""
        await segment.close()  # of a server that is no longer used
        cache = await ServerCache.open(self._requests.transport, span, self._max_length, self._prompts)
        try:
            outputs = [await cache.step(part, cache.position) for part in (*self._again(segment.sent), piece)]
        except BaseException:
            await cache.drop()
            raise
        return cache, torch.cat(outputs, dim=1)
