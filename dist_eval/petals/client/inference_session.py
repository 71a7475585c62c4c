"""A session: texts are sent in chunks, while servers keep the attention caches of earlier chunks.

As in a forward, one server after another computes its blocks, and servers may pass chunks on (see `chain.py`). The
client keeps the inputs of each segment's first block. If a server fails, leaves, or has no room, the texts are sent to
another one from their beginning, and nothing else is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from dist_eval.errors import NoCacheError, SwarmError
from dist_eval.petals.client import event_loop
from dist_eval.petals.client.attempts import Choice, RoutePart, TooLarge
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.outputs import picked
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.requests import SwarmRequests, for_all
from dist_eval.petals.client.routes import RouteRecord, Span
from dist_eval.petals.client.server_cache import chunk_tokens
from dist_eval.petals.client.session_segment import Chunk, Segment, SessionSettings
from dist_eval.petals.client.transport import ChainOutputs
from dist_eval.petals.client.turns import Request

Result = TypeVar("Result")

MakeInputs = Callable[[Any, torch.Tensor | None], Inputs]
"""Returns the first block's inputs for a step's token ids, or other inputs, and the prompts before them."""


class InferenceSession:
    """Sends texts to a swarm in chunks; a `dist_eval.model.text_session.TextSession`.

    Args:
        requests: sends to the swarm.
        inputs_of: returns the first block's inputs for token ids and the prompts before them.
        rows: number of texts.
        max_length: most tokens of a text, without prompts; servers reserve memory for them.
        prompts: of shape [pre_seq_len, hidden], or None.
        deep_prompts: of shape [blocks, pre_seq_len, hidden], or None.
        rolls_back: whether steps may continue the texts from before their end. If not, blocks with sliding windows
            keep only their windows, and such a step sends the whole texts again.
        request_tokens: see `chunk_tokens`.
    """

    def __init__(
        self,
        requests: SwarmRequests,
        inputs_of: MakeInputs,
        *,
        rows: int,
        max_length: int,
        prompts: torch.Tensor | None = None,
        deep_prompts: torch.Tensor | None = None,
        rolls_back: bool = True,
        request_tokens: int | None = None,
    ) -> None:
        self._requests, self._inputs_of, self._rows, self._prompts = requests, inputs_of, rows, prompts
        self._prompt_tokens = 0 if prompts is None else len(prompts)
        self._position, self._max_length = 0, max_length + self._prompt_tokens  # both include the prompts
        self._chunk = chunk_tokens(rows, deep_prompts, request_tokens)
        settings = SessionSettings(
            *(requests.transport, requests.num_blocks, self._max_length, self._chunk),
            deep=requests.transport.prompts.of(deep_prompts),
            rolls_back=rolls_back,
        )
        self._first = Segment(settings, 0, requests.num_blocks)
        self._servers: dict[RouteSegment, None] = {}

    @property
    def servers(self) -> int:
        """Number of servers that the texts pass."""
        return sum(max(1, len(segment.servers)) for segment in self._segments())

    @torch.no_grad()
    def step(
        self,
        input_ids: Any,
        start: int | None = None,
        record: RouteRecord | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `TextSession.step`. Servers with Petals 2.2 cannot roll back: they get the whole texts again.

        Raises `ValueError` if the texts would become longer than the session, or `start` is after their end. Raises
        `NoCacheError` if no server has room for the caches; it is not transient if a server accepts only smaller steps.
        For other errors, see `forward.forward`.
        """
        is_first = self._position < self._prompt_tokens
        inputs = self._inputs_of(input_ids, self._prompts if is_first else None)
        place = self._position if start is None or is_first else start + self._prompt_tokens
        self._check(inputs, place)
        before = self._prompt_tokens if is_first else 0
        if rows is not None and before:
            length = inputs.length - before
            rows = rows // length * inputs.length + before + rows % length
        outputs = inputs.restored(_run(self._step(inputs, place, rows, record or RouteRecord())))
        return outputs if rows is not None else outputs[:, before:]

    @torch.no_grad()
    def pass_through(
        self, hidden: torch.Tensor, avoided: Sequence[RouteSegment] = (), record: RouteRecord | None = None
    ) -> torch.Tensor:
        """Sends whole texts that will not be continued; each server's memory is freed as soon as they have passed it.

        `hidden` has the first block's inputs, a float tensor of shape [rows, length, hidden]. Returns the last block's
        outputs, of the same shape and dtype. Segments in `avoided` are avoided if there is another route. For errors,
        see `step`.
        """
        inputs = Inputs.of(hidden)
        self._check(inputs, 0)
        return _run(self._pass_through(inputs, avoided, record or RouteRecord())).to(hidden)

    @torch.no_grad()
    def continuations(
        self,
        input_ids: Sequence[torch.Tensor],
        record: RouteRecord | None = None,
        rows: Sequence[torch.Tensor | None] | None = None,
    ) -> Sequence[torch.Tensor]:
        """See `TextSession.continuations`: they are sent concurrently, several at a time to each server.

        For errors, see `step`.
        """
        all_inputs = [self._inputs_of(ids, None) for ids in input_ids]
        for inputs in all_inputs:
            self._check(inputs, self._position)
        needed = rows or [None] * len(all_inputs)
        outputs = _run(self._continuations([*zip(all_inputs, needed, strict=True)], record or RouteRecord()))
        return [inputs.restored(found) for found, inputs in zip(outputs, all_inputs, strict=True)]

    def close(self, *, wait: bool = True) -> None:
        """Frees the servers' memory."""
        from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

        RemoteExpertWorker.run_coroutine(self._close(), return_future=not wait)

    def _check(self, inputs: Inputs, start: int) -> None:
        if not 0 <= start <= self._position or start + inputs.length > self._max_length:
            raise ValueError(
                f"{inputs.length} tokens at position {start} do not fit into a session of at most {self._max_length} "
                f"tokens, with {self._position} sent so far."
            )

    def _segments(self) -> Iterator[Segment]:
        segment: Segment | None = self._first
        while segment is not None:
            yield segment
            segment = segment.next

    def _from(self, block: int) -> Segment | None:
        """Returns the segment that begins at a block, None after the last one."""
        return next((segment for segment in self._segments() if segment.start == block), None)

    async def _close(self) -> None:
        await asyncio.gather(*(segment.close() for segment in self._segments()), return_exceptions=True)

    async def _step(self, inputs: Inputs, start: int, rows: torch.Tensor | None, record: RouteRecord) -> torch.Tensor:
        self._position = start
        if start == 0:
            self._servers.clear()
        for old in self._segments():
            old.cut(start)
        await self._requests.rate_limiter.wait(inputs.size, is_new=not record.route)
        passed: list[tuple[Segment, Sequence[Chunk]]] = []
        outputs = await self._through_all(inputs, rows, self._servers, passed=passed)
        for segment, chunks in passed:
            segment.sent += [chunk.inputs for chunk in chunks]
        self._position += inputs.length
        record.route.extend(self._servers)
        return outputs

    async def _pass_through(self, inputs: Inputs, avoided: Sequence[RouteSegment], record: RouteRecord) -> torch.Tensor:
        await self._requests.rate_limiter.wait(inputs.size)
        servers: dict[RouteSegment, None] = {}
        outputs = await self._through_all(inputs, None, servers, avoided, closes=True)
        record.route.extend(servers)
        return outputs

    async def _continuations(
        self, continuations: Sequence[tuple[Inputs, torch.Tensor | None]], record: RouteRecord
    ) -> list[torch.Tensor]:
        servers, failed = dict(self._servers), False
        tokens = sum(inputs.size for inputs, _ in continuations)
        await self._requests.rate_limiter.wait(tokens, is_new=not record.route)

        async def through_all(continuation: tuple[Inputs, torch.Tensor | None]) -> torch.Tensor:
            nonlocal failed
            inputs, rows = continuation
            try:  # once one has failed, the others are not sent
                return await self._through_all(inputs, rows, servers, given_up=lambda: failed)
            except BaseException:
                failed = True
                raise

        outputs = await for_all(continuations, through_all)
        record.route.extend(servers)
        return outputs

    async def _through_all(
        self,
        inputs: Inputs,
        rows: torch.Tensor | None,
        servers: dict[RouteSegment, None],
        avoided: Sequence[RouteSegment] = (),
        *,
        passed: list[tuple[Segment, Sequence[Chunk]]] | None = None,
        closes: bool = False,
        given_up: Callable[[], bool] = lambda: False,
    ) -> torch.Tensor:
        """Sends the next tokens through all segments; returns all outputs, or those at `rows`.

        `rows` are positions in rows x length. Records the servers that answered in `servers`, and the chunks sent to
        each segment in `passed`. Segments in `avoided` are avoided if there is another route. With `closes`, each
        segment's memory is freed once the texts have passed it. Once `given_up` returns true, the outputs are no longer
        needed, and it returns an empty tensor.
        """
        parts = inputs.chunks(self._chunk)
        needed, order = _rows_of(parts, rows)
        outputs = list[torch.Tensor]()
        segment: Segment | None = self._first
        while segment is not None:
            if given_up():
                return torch.empty(0)
            chunks = [Chunk(part, some) for part, some in zip(parts, needed, strict=True)]
            if passed is not None:
                passed.append((segment, chunks))
            outputs, following = await self._through(segment, chunks, servers, avoided)
            if closes:
                await segment.close()
            if following is not None:
                parts = list(map(Inputs.of, outputs))
            segment = following
        return torch.cat(outputs, dim=1) if rows is None else torch.cat(outputs)[order]

    async def _through(
        self,
        segment: Segment,
        chunks: Sequence[Chunk],
        servers: dict[RouteSegment, None],
        avoided: Sequence[RouteSegment],
    ) -> tuple[list[torch.Tensor], Segment | None]:
        """Sends the next tokens through a segment, in chunks; returns its outputs and the next segment.

        The outputs are those of the segment's last block, only the needed ones if it is the model's last.
        """
        tokens = sum(chunk.inputs.size for chunk in chunks)
        from_beginning = self._rows * self._position + tokens

        def cached() -> Sequence[Span]:
            return segment.servers if segment.can_step(self._position) else ()

        def make_request(choice: Choice) -> Request:
            blocks = choice.end - segment.start
            if choice.has_cache:
                send, work = partial(segment.continued, choice, chunks, self._position), tokens
            else:
                send, work = partial(segment.begun, choice, chunks, self._position, segment.cache), from_beginning
            return Request(send, work * blocks)

        part = RoutePart(
            *(segment.start, segment.end, from_beginning, avoided),
            in_session=True,
            cached=cached,
            largest_message=min(self._rows * self._chunk, from_beginning),
            chained=self._requests.chains,
            has_ids=any(chunk.inputs.tokens is not None for chunk in chunks),
        )
        outputs: list[torch.Tensor] | None = None
        while outputs is None:  # None if servers of a chain have lost the texts
            choice, answer = await self._requests.send_with_retries(make_request, part)
            outputs, end = answer, choice.segment.end
            if isinstance(answer, ChainOutputs):
                outputs, end = answer.outputs, answer.answer.end
        for span in choice.servers:
            if span.end <= end:
                servers[RouteSegment(str(span.peer), span.start, span.end, span.announced.precision)] = None
        if end == self._requests.num_blocks:
            outputs = [
                picked(found, chunk.needed) if found.ndim == 3 else found
                for found, chunk in zip(outputs, chunks, strict=True)
            ]
        following = self._from(end)
        if following is None and end != self._requests.num_blocks:
            raise SwarmError(f"servers have answered for blocks up to {end}, where no segment begins")
        return outputs, following


def _rows_of(
    parts: Sequence[Inputs], rows: torch.Tensor | None
) -> tuple[list[torch.Tensor | None], torch.Tensor | None]:
    """Splits the needed positions of whole texts by chunk.

    Returns the positions in rows x length of each chunk, and the order that sorts the chunks' joined outputs.
    """
    if rows is None:
        return [None] * len(parts), None
    length, start = sum(part.length for part in parts), 0
    needed: list[torch.Tensor | None] = []
    places = list[torch.Tensor]()
    texts, columns = rows // length, rows % length
    for part in parts:
        found = ((columns >= start) & (columns < start + part.length)).nonzero().flatten()
        needed.append(texts[found] * part.length + columns[found] - start)
        places.append(found)
        start += part.length
    return needed, torch.cat(places).argsort()


def _run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine in the event loop's thread."""
    try:
        return event_loop.run(coroutine)
    except TooLarge as error:
        refused = NoCacheError(f"steps of sessions are larger than a server accepts ({error})")
        refused.transient = False
        raise refused from error
