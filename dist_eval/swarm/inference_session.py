"""A session: texts that are sent piece by piece, while servers keep the attention caches of what they were sent before.

One server after another computes its blocks of a piece, as with a forward. The first block's inputs of each segment are
kept here: if a server fails, leaves, or has no room, another one is sent the texts from their beginning, and nothing
else is lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch

from dist_eval.data.answers import RouteSegment
from dist_eval.errors import NoCacheError
from dist_eval.swarm.attempts import RoutePart, TooLarge
from dist_eval.swarm.requests import SwarmRequests, tokens_in
from dist_eval.swarm.router import Routing, Span
from dist_eval.swarm.server_cache import CacheLost, ServerCache

Result = TypeVar("Result")

REQUEST_TOKENS = 1024
"""Most tokens in a message, as in Petals' own micro-batches: servers accept 2048 or more."""


@dataclass
class _Segment:
    """Consecutive blocks whose caches are on one server, if on any.

    Attributes:
        start: the first block.
        end: one past the last block.
        sent: inputs of the first block for all positions so far, in pieces of shape [rows, n, hidden].
        next: the segment behind it.
        cache: the stream to the server.
        lock: held by the texts that are at the server, in the order in which they came.
    """

    start: int
    end: int
    sent: list[torch.Tensor] = field(default_factory=list)
    next: _Segment | None = None
    cache: ServerCache | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

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
    """Texts that are sent to a swarm piece by piece. To be used by one thread, but for `continuations`, as a context.

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
        self._first = _Segment(0, requests.num_blocks)
        self._servers: dict[RouteSegment, None] = {}

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def servers(self) -> int:
        """How many servers the texts pass one after the other."""
        return sum(1 for _ in self._segments())

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
        start = self.position if start is None else start
        self._check(hidden, start)
        return _run(self._step(hidden, start, routing or Routing())).to(hidden)

    def continuations(self, hidden: Sequence[torch.Tensor], routing: Routing | None = None) -> list[torch.Tensor]:
        """Continues the texts in several ways, none of which is kept. May be used by several threads at a time.

        The ways do not wait for each other: one is at the first server while the one before it is at the second.

        Args:
            hidden: for each way the first block's inputs, float tensor of shape [rows, n, hidden].
            routing: records the servers, as in `step`.

        Returns:
            The last block's outputs for each way, of the same shape and dtype.

        Raises:
            Exception: see `step`.
        """
        for one in hidden:
            self._check(one, self.position)
        outputs = _run(self._continuations(hidden, routing or Routing()))
        return [found.to(one) for found, one in zip(outputs, hidden, strict=True)]

    def close(self) -> None:
        """Gives the servers' memory back."""
        _run(self._close())

    def _check(self, hidden: torch.Tensor, start: int) -> None:
        if not 0 <= start <= self.position or start + hidden.shape[1] > self._max_length:
            raise ValueError(
                f"{hidden.shape[1]} tokens at position {start} of a session of at most {self._max_length} tokens, of "
                f"which {self.position} were sent."
            )

    def _segments(self) -> Iterator[_Segment]:
        segment: _Segment | None = self._first
        while segment is not None:
            yield segment
            segment = segment.next

    async def _close(self) -> None:
        await asyncio.gather(*(segment.close() for segment in self._segments()), return_exceptions=True)

    async def _step(self, hidden: torch.Tensor, start: int, routing: Routing) -> torch.Tensor:
        self.position = start
        if start == 0:
            self._servers.clear()
        for segment in self._segments():
            segment.cut(start)
        await self._requests.rate_limiter.wait(tokens_in(hidden))
        inputs: list[tuple[_Segment, list[torch.Tensor]]] = []
        pieces = self._pieces(hidden)
        for segment in self._segments():
            inputs.append((segment, pieces))
            pieces = await self._through(segment, pieces, self._servers)
        for segment, sent in inputs:
            segment.sent += sent
        self.position += hidden.shape[1]
        routing.route.extend(self._servers)
        return torch.cat(pieces, dim=1)

    async def _continuations(self, hidden: Sequence[torch.Tensor], routing: Routing) -> list[torch.Tensor]:
        servers, failed = dict(self._servers), False

        async def through_all(one: torch.Tensor) -> torch.Tensor:
            nonlocal failed
            await self._requests.rate_limiter.wait(tokens_in(one))
            pieces = self._pieces(one)
            try:
                for segment in self._segments():
                    if failed:  # the others need not be sent
                        break
                    pieces = await self._through(segment, pieces, servers)
            except BaseException:
                failed = True
                raise
            return torch.cat(pieces, dim=1)

        found = await asyncio.gather(*map(through_all, hidden), return_exceptions=True)  # none goes on alone
        for one in found:
            if isinstance(one, BaseException):
                raise one
        routing.route.extend(servers)
        return cast(list[torch.Tensor], found)

    async def _through(
        self, segment: _Segment, pieces: list[torch.Tensor], servers: dict[RouteSegment, None]
    ) -> list[torch.Tensor]:
        """Sends what follows the texts through a segment, piece by piece; its end may then be an earlier block.

        Args:
            segment: the segment.
            pieces: inputs of its first block.
            servers: records those that have answered.

        Returns:
            Outputs of its last block for the pieces.
        """
        async with segment.lock:
            outputs: list[torch.Tensor] = []
            for number in range(len(pieces)):
                span, found = await self._send(segment, pieces[: number + 1])
                servers[RouteSegment(str(span.peer), span.start, span.end, span.announced.precision)] = None
                sizes = [piece.shape[1] for piece in pieces[: number + 1]]
                if found.shape[1] < self.position + sum(sizes):
                    outputs.append(found)
                    continue
                # a server was sent everything from the beginning, perhaps one with fewer blocks
                before, own = torch.split(found, [self.position, sum(sizes)], dim=1)
                outputs = list(torch.split(own, sizes, dim=1))
                if span.end < segment.end:
                    cuts = [piece.shape[1] for piece in segment.sent]
                    rest = list(torch.split(before, cuts, dim=1)) if cuts else []
                    segment.next = _Segment(span.end, segment.end, rest, segment.next)
                    segment.end = span.end
        return outputs

    async def _send(self, segment: _Segment, pieces: list[torch.Tensor]) -> tuple[Span, torch.Tensor]:
        """Sends the last piece, or all from the beginning of the texts; returns the outputs of what was sent."""
        *earlier, piece = pieces
        position = self.position + sum(one.shape[1] for one in earlier)
        if segment.cache is not None and not segment.cache.can_step(position):
            await segment.close()
        warm, tokens = segment.cache, self._rows * piece.shape[1]
        from_beginning = self._rows * position + tokens

        def make_request(span: Span) -> tuple[Coroutine[Any, Any, Any], int]:
            blocks = span.end - span.start
            if segment.cache is not None and span is segment.cache.segment:
                return self._continued(segment, pieces, position), tokens * blocks
            return self._opened(span, segment, pieces), from_beginning * blocks

        part = RoutePart(
            *(segment.start, segment.end, tokens if warm else from_beginning),
            cached=warm.segment if warm else None,
            messages=1 + -(-position // self._piece),
        )
        span, (segment.cache, outputs) = await self._requests.send_with_retries(make_request, part)
        return span, outputs

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

    async def _continued(
        self, segment: _Segment, pieces: list[torch.Tensor], position: int
    ) -> tuple[ServerCache, torch.Tensor]:
        cache, segment.cache = segment.cache, None
        assert cache is not None
        try:
            return cache, await cache.step(pieces[-1], position)
        except CacheLost:
            return await self._opened(cache.segment, segment, pieces)
        except BaseException:
            await cache.drop()
            raise

    async def _opened(
        self, span: Span, segment: _Segment, pieces: list[torch.Tensor]
    ) -> tuple[ServerCache, torch.Tensor]:
        """Has a server compute the texts so far and the pieces; returns the outputs for all positions."""
        await segment.close()  # of a server that is no longer used
        cache = await ServerCache.open(self._requests.transport, span, self._max_length, self._prompts)
        try:
            outputs = [await cache.step(part, cache.position) for part in (*self._again(segment.sent), *pieces)]
        except BaseException:
            await cache.drop()
            raise
        return cache, torch.cat(outputs, dim=1)


def _run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine in the thread of the event loop.

    Raises:
        NoCacheError: a server takes smaller steps only.
    """
    from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

    try:
        return RemoteExpertWorker.run_coroutine(coroutine)
    except TooLarge as error:
        refused = NoCacheError(f"steps of sessions are larger than a server accepts ({error})")
        refused.transient = False
        raise refused from error
