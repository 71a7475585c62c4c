"""A session: texts that are sent in chunks, while servers keep the attention caches of what they were sent before.

One server after another computes its blocks of a chunk, as with a forward. The first block's inputs of each segment are
kept here: if a server fails, leaves, or has no room, another one is sent the texts from their beginning, and nothing
else is lost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from dist_eval.errors import NoCacheError
from dist_eval.petals.client.attempts import Choice, RoutePart, TooLarge
from dist_eval.petals.client.failures import RequestDisplaced
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.requests import SwarmRequests, for_all, tokens_in
from dist_eval.petals.client.routes import RouteRecord, Span
from dist_eval.petals.client.server_cache import CacheLost, SentStep, ServerCache, chunk_tokens
from dist_eval.petals.client.turns import Request

Result = TypeVar("Result")

Embed = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Returns the first block's inputs for token ids and the prompts before them."""


@dataclass
class _Segment:
    """Consecutive blocks whose caches are on one server, if on any."""

    start: int  # the first block
    end: int  # one past the last block
    # inputs of the first block for all positions so far, in chunks of shape [rows, n, hidden]
    sent: list[torch.Tensor] = field(default_factory=list)
    next: _Segment | None = None  # the segment after it
    cache: ServerCache | None = None  # the stream to the server
    # held while a step is sent, and as long as a stream to another server is opened
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def cut(self, position: int) -> None:
        """Forgets the inputs from a position on."""
        kept = []
        for chunk in self.sent:
            if position > 0:
                kept.append(chunk[:, :position])
            position -= chunk.shape[1]
        self.sent = kept

    async def close(self) -> None:
        """Gives the server's memory back."""
        cache, self.cache = self.cache, None
        if cache is not None:
            await cache.close()

    async def drop(self, cache: ServerCache) -> None:
        """Cuts the connection of a cache, after a failure."""
        if self.cache is cache:
            self.cache = None
        await cache.drop()


class InferenceSession:
    """Texts that are sent to a swarm in chunks; a `dist_eval.model.text_session.TextSession`.

    Args:
        requests: sends to the swarm.
        embed: returns the first block's inputs for token ids and the prompts before them.
        rows: number of texts.
        max_length: most tokens of a text, without prompts; servers reserve memory for them.
        prompts: of shape [pre_seq_len, hidden], or None.
        deep_prompts: of shape [blocks, pre_seq_len, hidden], or None.
        rolls_back: whether steps will continue the texts from before their end. If so, servers keep all of the texts;
            else blocks with sliding windows keep their windows only, and such a step sends the whole texts again.
        request_tokens: see `chunk_tokens`.
    """

    def __init__(
        self,
        requests: SwarmRequests,
        embed: Embed,
        *,
        rows: int,
        max_length: int,
        prompts: torch.Tensor | None = None,
        deep_prompts: torch.Tensor | None = None,
        rolls_back: bool = True,
        request_tokens: int | None = None,
    ) -> None:
        self._requests, self._embed, self._rows, self._rolls_back = requests, embed, rows, rolls_back
        self._prompts, self._deep_prompts = prompts, deep_prompts
        self._prompt_tokens = 0 if prompts is None else len(prompts)
        self._position, self._max_length = 0, max_length + self._prompt_tokens  # of a text after the prompts
        self._chunk = chunk_tokens(rows, deep_prompts, request_tokens)
        self._first = _Segment(0, requests.num_blocks)
        self._servers: dict[RouteSegment, None] = {}

    @property
    def position(self) -> int:
        """Tokens of each text that were sent so far, without prompts."""
        return max(0, self._position - self._prompt_tokens)

    @property
    def servers(self) -> int:
        """How many servers the texts pass one after the other."""
        return sum(1 for _ in self._segments())

    @torch.no_grad()
    def step(
        self, input_ids: torch.Tensor, start: int | None = None, record: RouteRecord | None = None
    ) -> torch.Tensor:
        """See `TextSession.step`. Servers with Petals 2.2 cannot forget: they are sent the whole texts.

        Raises:
            ValueError: the texts would become longer than the session, or `start` is behind their end.
            NoCacheError: no server has room for the caches; not a transient one if a server takes smaller steps only.
            EvaluationError: see `SwarmRequests.forward`.
        """
        is_first = self._position < self._prompt_tokens
        hidden = self._embed(input_ids, self._prompts if is_first else None)
        place = self._position if start is None or is_first else start + self._prompt_tokens
        self._check(hidden, place)
        outputs = _run(self._step(hidden, place, record or RouteRecord())).to(hidden)
        return outputs[:, hidden.shape[1] - input_ids.shape[1] :]

    @torch.no_grad()
    def pass_through(
        self, hidden: torch.Tensor, avoided: Sequence[RouteSegment] = (), record: RouteRecord | None = None
    ) -> torch.Tensor:
        """Sends whole texts that nothing will follow: each server's memory is given back once they have passed it.

        Args:
            hidden: the first block's inputs, float tensor of shape [rows, length, hidden].
            avoided: segments to avoid if there is another route.
            record: records the route.

        Returns:
            The last block's outputs, of the same shape and dtype.

        Raises:
            NoCacheError, EvaluationError: see `step`.
        """
        self._check(hidden, 0)
        return _run(self._pass_through(hidden, avoided, record or RouteRecord())).to(hidden)

    @torch.no_grad()
    def continuations(
        self, input_ids: Sequence[torch.Tensor], record: RouteRecord | None = None
    ) -> Sequence[torch.Tensor]:
        """See `TextSession.continuations`: the ways do not wait for each other, several are on the way to each server.

        Raises:
            Exception: see `step`.
        """
        ways = [self._embed(ids, None) for ids in input_ids]
        for hidden in ways:
            self._check(hidden, self._position)
        outputs = _run(self._continuations(ways, record or RouteRecord()))
        return [found.to(hidden) for found, hidden in zip(outputs, ways, strict=True)]

    def close(self, *, wait: bool = True) -> None:
        """Gives the servers' memory back."""
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        RemoteExpertWorker.run_coroutine(self._close(), return_future=not wait)

    def _check(self, hidden: torch.Tensor, start: int) -> None:
        if not 0 <= start <= self._position or start + hidden.shape[1] > self._max_length:
            raise ValueError(
                f"{hidden.shape[1]} tokens at position {start} of a session of at most {self._max_length} tokens, of "
                f"which {self._position} were sent."
            )

    def _segments(self) -> Iterator[_Segment]:
        segment: _Segment | None = self._first
        while segment is not None:
            yield segment
            segment = segment.next

    def _from(self, block: int) -> _Segment | None:
        """Returns the segment that begins at a block, None after the last one."""
        return next((segment for segment in self._segments() if segment.start == block), None)

    async def _close(self) -> None:
        await asyncio.gather(*(segment.close() for segment in self._segments()), return_exceptions=True)

    async def _step(self, hidden: torch.Tensor, start: int, record: RouteRecord) -> torch.Tensor:
        self._position = start
        if start == 0:
            self._servers.clear()
        for old in self._segments():
            old.cut(start)
        await self._requests.rate_limiter.wait(tokens_in(hidden))
        inputs: list[tuple[_Segment, list[torch.Tensor]]] = []
        chunks = self._chunks(hidden)
        segment: _Segment | None = self._first
        while segment is not None:
            inputs.append((segment, chunks))
            chunks, segment = await self._through(segment, chunks, self._servers)
        for passed, sent in inputs:
            passed.sent += sent
        self._position += hidden.shape[1]
        record.route.extend(self._servers)
        return torch.cat(chunks, dim=1)

    async def _pass_through(
        self, hidden: torch.Tensor, avoided: Sequence[RouteSegment], record: RouteRecord
    ) -> torch.Tensor:
        await self._requests.rate_limiter.wait(tokens_in(hidden))
        servers: dict[RouteSegment, None] = {}
        chunks = self._chunks(hidden)
        segment: _Segment | None = self._first
        while segment is not None:
            chunks, following = await self._through(segment, chunks, servers, avoided)
            await segment.close()
            segment = following
        record.route.extend(servers)
        return torch.cat(chunks, dim=1)

    async def _continuations(self, hidden: Sequence[torch.Tensor], record: RouteRecord) -> list[torch.Tensor]:
        servers, failed = dict(self._servers), False

        async def through_all(way: torch.Tensor) -> torch.Tensor:
            nonlocal failed
            await self._requests.rate_limiter.wait(tokens_in(way))
            chunks = self._chunks(way)
            segment: _Segment | None = self._first
            try:
                while segment is not None and not failed:  # if one has failed, the others need not be sent
                    chunks, segment = await self._through(segment, chunks, servers)
            except BaseException:
                failed = True
                raise
            return torch.cat(chunks, dim=1)

        outputs = await for_all(hidden, through_all)
        record.route.extend(servers)
        return outputs

    async def _through(
        self,
        segment: _Segment,
        chunks: list[torch.Tensor],
        servers: dict[RouteSegment, None],
        avoided: Sequence[RouteSegment] = (),
    ) -> tuple[list[torch.Tensor], _Segment | None]:
        """Sends what follows the texts through a segment, in chunks.

        Returns:
            Outputs of the last block of that server, and the segment that begins after it.
        """
        tokens = self._rows * sum(chunk.shape[1] for chunk in chunks)
        from_beginning = self._rows * self._position + tokens

        def cached() -> Span | None:
            cache = segment.cache
            return cache.segment if cache is not None and cache.can_step(self._position) else None

        def make_request(choice: Choice) -> Request:
            span = choice.segment
            if span is cached():
                return Request(partial(self._continued, segment, chunks), tokens * (span.end - span.start))
            unfit, work = segment.cache, from_beginning * (span.end - span.start)
            return Request(partial(self._begun, span, segment, chunks, unfit), work)

        largest = min(self._rows * self._chunk, from_beginning)
        part = RoutePart(
            *(segment.start, segment.end, from_beginning, avoided),
            in_session=True,
            cached=cached,
            largest_message=largest,
        )
        _, (span, outputs) = await self._requests.send_with_retries(make_request, part)
        servers[RouteSegment(str(span.peer), span.start, span.end, span.announced.precision)] = None
        return outputs, self._from(span.end)

    def _chunks(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Splits the tokens of texts into those of one message each."""
        return list(torch.split(hidden, self._chunk, dim=1)) if hidden.shape[1] else []

    def _again(self, sent: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns what to send again: the same chunks, for the same bits, but generated tokens together."""
        chunks: list[torch.Tensor] = []
        for is_token, some in itertools.groupby(sent, lambda chunk: chunk.shape[1] == 1):
            part = list(some)
            chunks += self._chunks(torch.cat(part, dim=1)) if is_token else part
        return chunks

    async def _continued(
        self, segment: _Segment, chunks: list[torch.Tensor], timeout: float
    ) -> tuple[Span, list[torch.Tensor]]:
        """Has the server that holds caches of the texts compute the chunks."""
        async with segment.lock:
            cache, position, steps = segment.cache, self._position, list[SentStep]()
            if cache is None or not cache.can_step(position):
                raise CacheLost
            try:
                for chunk in chunks:
                    steps.append(await cache.send(chunk, position))
                    position += chunk.shape[1]
            except BaseException:
                await segment.drop(cache)
                raise
        try:
            return cache.segment, [await asyncio.wait_for(cache.outputs(step), timeout) for step in steps]
        except BaseException:
            await segment.drop(cache)
            raise

    async def _begun(
        self, span: Span, segment: _Segment, chunks: list[torch.Tensor], unfit: ServerCache | None, timeout: float
    ) -> tuple[Span, list[torch.Tensor]]:
        """Has a server compute the texts and the chunks."""
        async with segment.lock:
            if segment.cache in (None, unfit) or not segment.cache.can_step(self._position):
                return span, await self._opened(span, segment, chunks, timeout)
        # another step has found one meanwhile, which only needs the chunks
        raise RequestDisplaced("a server has caches of the texts by now")

    async def _opened(
        self, span: Span, segment: _Segment, chunks: list[torch.Tensor], timeout: float
    ) -> list[torch.Tensor]:
        """Has a server compute the texts so far, and the chunks; if it has fewer blocks, the segment is cut."""
        await segment.close()  # of a server that is no longer used
        cache = await ServerCache.open(
            self._requests.transport, span, self._max_length, self._deep_prompts, rolls_back=self._rolls_back
        )
        sent = self._again(segment.sent)
        try:
            outputs = await cache.answers([*sent, *chunks], timeout)
        except BaseException as error:
            await cache.drop()
            if isinstance(error, CacheLost):
                raise ConnectionResetError("the server has ended the stream") from error
            raise
        if span.end < segment.end:
            sizes = [chunk.shape[1] for chunk in segment.sent]
            rest = list(torch.split(torch.cat(outputs[: len(sent)], dim=1), sizes, dim=1)) if sent else []
            segment.next, segment.end = _Segment(span.end, segment.end, rest, segment.next), span.end
        segment.cache = cache
        return outputs[len(sent) :]


def _run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine in the thread of the event loop."""
    from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

    try:
        return RemoteExpertWorker.run_coroutine(coroutine)
    except TooLarge as error:
        refused = NoCacheError(f"steps of sessions are larger than a server accepts ({error})")
        refused.transient = False
        raise refused from error
