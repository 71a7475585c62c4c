"""A segment of a session: its inputs so far, and the servers that keep the caches of its blocks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from dist_eval.petals.client.attempts import Choice
from dist_eval.petals.client.chain import ChainRequest, request_to
from dist_eval.petals.client.deep_prompts import DeepPrompts, Packed
from dist_eval.petals.client.failures import ChooseAgain, lacks_prompts
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.server_cache import CacheLost, ChainCut, SentStep, ServerCache
from dist_eval.petals.client.transport import ChainOutputs, Transport

_NO_ROWS = torch.empty(0, dtype=torch.int64)


class _PromptsLost(Exception):
    """Servers no longer keep the deep prompts that digests replaced."""


class Chunk(NamedTuple):
    """The content of a message."""

    inputs: Inputs
    # positions in rows x length whose outputs of the last block are needed, int64 of shape [n]; None for all
    needed: torch.Tensor | None


@dataclass(frozen=True)
class SessionSettings:
    """The settings that all segments of a session share."""

    transport: Transport
    num_blocks: int  # of the model
    max_length: int  # most tokens of a text, prompts included
    chunk: int  # tokens of each text in a message
    deep: DeepPrompts  # of all blocks
    rolls_back: bool


@dataclass
class Segment:
    """Consecutive blocks whose caches are on one server, on a chain, or nowhere."""

    settings: SessionSettings
    start: int  # the first block
    end: int  # one past the last block
    sent: list[Inputs] = field(default_factory=list)  # inputs of the first block for all positions so far, in chunks
    next: Segment | None = None  # the segment after it
    cache: ServerCache | None = None  # the stream to the first server
    _chain: Sequence[Span] = ()  # the servers that have the caches, if they answer as a chain
    # locked while a step is sent or a stream to another server is opened
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def servers(self) -> Sequence[Span]:
        """The servers that hold the caches, and their blocks."""
        return self._chain or ([] if self.cache is None else [self.cache.segment])

    def can_step(self, position: int) -> bool:
        """Whether servers hold caches of the texts that can be continued at a position."""
        return self.cache is not None and self.cache.can_step(position)

    def cut(self, position: int) -> None:
        """Drops the inputs from a position on."""
        kept = []
        for chunk in self.sent:
            if position > 0:
                kept.append(chunk if position >= chunk.length else chunk.first(position))
            position -= chunk.length
        self.sent = kept

    async def close(self) -> None:
        """Frees the servers' memory."""
        cache, self.cache, self._chain = self.cache, None, ()
        if cache is not None:
            await cache.close()

    async def continued(self, choice: Choice, chunks: Sequence[Chunk], position: int, timeout: float) -> Any:
        """Sends the chunks to the servers that hold caches of the texts; returns the outputs of each chunk.

        `position` is that of their first token. A chain returns `ChainOutputs`, whose outputs are None if some of its
        servers lost the texts. `timeout` is in seconds, for each answer. Raises `CacheLost` if the servers no longer
        hold caches; for other errors, see `ServerCache.send` and `ServerCache.outputs`.
        """
        async with self._lock:
            cache, steps = self.cache, list[SentStep]()
            if cache is None or not cache.can_step(position) or [*self.servers] != [*choice.servers]:
                raise CacheLost
            try:
                for inputs, request in self._messages(self._chain, choice.patience, chunks):
                    steps.append(await cache.send(inputs, position, request))
                    position += inputs.length
            except BaseException:
                await self._drop(cache)
                raise
        try:
            outputs = [await asyncio.wait_for(cache.outputs(step), timeout) for step in steps]
        except ChainCut as cut:
            await self._drop(cache)
            return ChainOutputs(None, cut.answer)
        except BaseException:
            await self._drop(cache)
            raise
        return outputs if cache.answer is None else ChainOutputs(outputs, cache.answer)

    async def begun(
        self, choice: Choice, chunks: Sequence[Chunk], position: int, unfit: ServerCache | None, timeout: float
    ) -> Any:
        """Sends the texts from their beginning and the chunks; cuts the segment if the servers have fewer blocks.

        `unfit` is the stream that was open when the servers were chosen; it is closed. Raises `ChooseAgain` if other
        servers hold caches of the texts by now; for other errors, see `ServerCache.open` and `ServerCache.answers`. For
        the rest, see `continued`.
        """
        async with self._lock:
            if self.cache in (None, unfit) or not self.can_step(position):
                return await self._opened(choice, chunks, timeout)
        raise ChooseAgain("a server has caches of the texts by now")

    async def _opened(self, choice: Choice, chunks: Sequence[Chunk], timeout: float) -> Any:
        await self.close()
        deep = self.settings.deep
        prompts = await deep.packed(replace(choice.segment, start=self.start, end=choice.end))
        if deep.are_kept(choice.chain, prompts):
            with contextlib.suppress(_PromptsLost):
                return await self._opened_with(prompts.omitted(), choice, chunks, timeout)
        outputs = await self._opened_with(prompts, choice, chunks, timeout)
        if self.cache is not None:
            deep.answered(choice.chain, prompts, self.end)
        return outputs

    async def _opened_with(self, prompts: Packed, choice: Choice, chunks: Sequence[Chunk], timeout: float) -> Any:
        settings = self.settings
        cache = await ServerCache.open(
            settings.transport, choice.segment, settings.max_length, prompts, rolls_back=settings.rolls_back
        )
        sent = [Chunk(inputs, _NO_ROWS) for inputs in self._again()]
        messages = self._messages(choice.chain, choice.patience, [*sent, *chunks], prompts.digests)
        try:
            outputs = await cache.answers(messages, timeout)
        except ChainCut as cut:
            await cache.drop()
            return ChainOutputs(None, cut.answer)
        except BaseException as error:
            await cache.drop()
            if prompts.is_omitted and lacks_prompts(error):
                raise _PromptsLost from error
            raise
        if prompts.is_omitted and cache.answer is not None and cache.answer.lacks_prompts:
            await cache.drop()
            raise _PromptsLost
        if cache.end < self.end:
            sizes = [chunk.length for chunk in self.sent]
            rest = torch.cat(outputs[: len(sent)], dim=1).split(sizes, dim=1) if sent else []
            self.next = Segment(settings, cache.end, self.end, list(map(Inputs.of, rest)), self.next)
            self.end = cache.end
        self.cache, self._chain = cache, [span for span in choice.chain if span.end <= cache.end]
        outputs = outputs[len(sent) :]
        return outputs if cache.answer is None else ChainOutputs(outputs, cache.answer)

    async def _drop(self, cache: ServerCache) -> None:
        """Closes the connection of a cache after a failure."""
        if self.cache is cache:
            self.cache, self._chain = None, ()
        await cache.drop()

    def _again(self) -> list[Inputs]:
        """Returns the inputs to send again: the same chunks, for identical bits, but generated tokens joined."""
        chunks: list[Inputs] = []
        for is_token, some in itertools.groupby(self.sent, lambda chunk: chunk.length == 1):
            part = list(some)
            chunks += Inputs.joined(part).chunks(self.settings.chunk) if is_token else part
        return chunks

    def _messages(
        self, chain: Sequence[Span], patience: Sequence[float], chunks: Sequence[Chunk], prompts: Sequence[bytes] = ()
    ) -> list[tuple[Inputs, ChainRequest | None]]:
        """Returns the messages to a chain of servers, or to a single one; the first one has digests of prompts."""
        if not chain:
            return [(chunk.inputs, None) for chunk in chunks]
        is_last = chain[-1].end == self.settings.num_blocks  # only then may outputs be left out
        messages = list[tuple[Inputs, ChainRequest | None]]()
        for inputs, needed in chunks:
            rows = needed if is_last and needed is not None and len(needed) < inputs.size else None
            digests = None if messages else [*prompts] or None
            messages.append((inputs, request_to(chain, patience, rows, ids=inputs.tokens is not None, prompts=digests)))
        return messages
