"""A stream to a server that keeps the attention caches of some texts, so each token is sent only once.

The server may pass the steps on to the next one, and so on (see `chain.py`). Each server of such a chain keeps the
caches of its own blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from dist_eval.errors import SwarmError
from dist_eval.petals.client.chain import ChainAnswer, ChainRequest, read_chain_answer
from dist_eval.petals.client.deep_prompts import NO_TENSOR, Packed
from dist_eval.petals.client.failures import ChooseAgain, WrongAnswer
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.petals_version import can_roll_back
from dist_eval.petals.client.protocol import ROLLS_BACK
from dist_eval.petals.client.requests import tokens_in
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.streams import Answer, SessionStream
from dist_eval.petals.client.transport import NO_ORDER, Transport
from dist_eval.petals.client.turns import Request

# Longest time that a server should wait for free cache before the client asks another one
_ALLOCATION_SECONDS = 3.0
_CLOSING_SECONDS = 2.0
_AHEAD = 3  # unanswered steps of a long text: enough to keep the server busy, without filling its memory


REQUEST_TOKENS = 1024
"""Most tokens in a message, as in Petals' own micro-batches; servers accept 2048 or more."""


class CacheLost(ChooseAgain):
    """The stream has ended: by the server, after five idle minutes or half an hour, or here after a failed step."""


class ChainCut(Exception):
    """A server answered in place of later ones that had answered earlier steps: they have lost the caches.

    `answer` says how far the step was passed on; `outputs` are those of the server that answered, still serialized.
    """

    def __init__(self, answer: ChainAnswer, outputs: Sequence[Payload]) -> None:
        super().__init__(answer.why)
        self.answer, self.outputs = answer, outputs


class SentStep(NamedTuple):
    """A step that was sent."""

    answer: asyncio.Future[Answer | Exception]
    shape: torch.Size  # shape of all its outputs
    request: ChainRequest | None = None  # the request, if it was sent to a chain


class ServerCache:
    """The caches of several texts on a server, which answers their steps in order. Belongs to one event loop.

    Attributes:
        segment: the server and its blocks.
        position: tokens of each text in the caches once all sent steps are answered.
        answer: how far a chain of servers passed the latest step on; None without a chain or an answer. All answers
            have the same `end`.
        failure: the error of the stream, if it failed while no step was unanswered.
    """

    def __init__(
        self,
        transport: Transport,
        stream: SessionStream,
        segment: Span,
        max_length: int,
        prompts: Packed,
        *,
        rolls_back: bool,
    ) -> None:
        self.segment, self.position = segment, 0
        self.answer: ChainAnswer | None = None
        self.failure: Exception | None = None
        self._transport, self._stream, self._rolls_back = transport, stream, rolls_back
        self._prompt_tokens = prompts.tokens
        self._prompts: Payload | None = prompts.payload  # None once they are sent
        self._opening = {"max_length": max_length, "alloc_timeout": _ALLOCATION_SECONDS, ROLLS_BACK: rolls_back}
        self._unanswered: deque[SentStep] = deque()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls, transport: Transport, segment: Span, max_length: int, prompts: Packed, *, rolls_back: bool
    ) -> ServerCache:
        """Opens the stream; the server allocates the caches at the first step.

        A text has at most `max_length` tokens. `prompts` are deep prompts of these blocks and of the rest of a chain;
        they are sent with the first step, which must not be shorter. `rolls_back` is whether texts may be continued
        from before their end; otherwise some servers need less memory.

        Raises `ChooseAgain` if the server's sessions differ from those of Petals, and any error of the daemon or the
        connection (see `failures.classify`).
        """
        if not await transport.has_sessions(segment):
            raise ChooseAgain("its sessions are not those of Petals")
        stream = await transport.open_session(segment)
        return cls(transport, stream, segment, max_length, prompts, rolls_back=rolls_back)

    def can_step(self, position: int) -> bool:
        """Whether the texts may be continued at a position: at the end of the caches, or before it."""
        if position == self.position:
            return True
        if not self._rolls_back:
            return False
        is_within = self._prompt_tokens <= position < self.position
        return is_within and can_roll_back(self.segment.announced.version)

    async def send(
        self, inputs: Inputs, position: int, request: ChainRequest | None = None, order: torch.Tensor = NO_ORDER
    ) -> SentStep:
        """Sends the next tokens of the texts; earlier steps may be unanswered. One call at a time.

        Raises `CacheLost` if the stream has ended.

        Args:
            inputs: inputs of the first block.
            position: position of the first of these tokens; the caches are cut there.
            request: where to pass them on, if the server is part of a chain; all steps take the same route.
            order: which row's cache each row continues, int64 of shape [rows]; by default its own.
        """
        from hivemind.proto import runtime_pb2
        from hivemind.utils.serializer import MSGPackSerializer

        prompts, ids = self._prompts or Payload.of(NO_TENSOR), request is not None and request.ids
        tensors = await self._transport.session_tensors(self.segment, inputs, prompts, order, ids=ids)
        if self._reading.done():
            raise CacheLost
        fields: dict[str, Any] = {} if request is None else request.packed()
        if self._prompts is not None:
            head, self._prompts = self._transport.session_head(self.segment, self._opening | fields), None
        else:
            if position != self.position:
                fields["start_from_position"] = position
            head = {"metadata": MSGPackSerializer.dumps(fields)} if fields else {}
        step = SentStep(asyncio.get_running_loop().create_future(), inputs.shape, request)
        self._unanswered.append(step)
        self._stream.send(runtime_pb2.ExpertRequest(**head), tensors)
        self.position = position + inputs.length
        return step

    async def answer_to(self, step: SentStep) -> Answer:
        """Waits for the answer to a step, and returns it unchanged.

        Raises `CacheLost` if the stream has ended, `ChainCut` if the chain ended earlier than in previous steps,
        `WrongAnswer` if the answer of a chain lacks the server where it ended, and any error of the daemon, the
        connection or the server (see `failures.classify`).
        """
        answer = await step.answer
        if isinstance(answer, Exception):
            raise answer
        if step.request is not None:
            ends = [self.segment.end, *(hop.end for hop in step.request.chain)]
            found = read_chain_answer(answer.metadata, ends)
            if self.answer is not None and self.answer.end != found.end:
                raise ChainCut(found, answer.tensors)
            self.answer = found
        return answer

    async def outputs(self, step: SentStep) -> torch.Tensor:
        """Waits for the answer to a step; returns the last block's outputs, in the dtype that the server sent.

        They have the step's shape. If a chain reached its end, they are only the requested ones, of shape
        [rows, hidden]. For errors, see `answer_to` and `read_answer`.
        """
        answer, request = await self.answer_to(step), step.request
        end = self.segment.end if request is None or not request.chain else request.chain[-1].end
        if request is None or request.rows is None or self.end < end:
            return await self._transport.session_outputs(answer.tensors, step.shape)
        shape = torch.Size((1, len(request.rows), step.shape[2]))
        return (await self._transport.session_outputs(answer.tensors, shape))[0]

    @property
    def end(self) -> int:
        """One past the last block that the answers include."""
        return self.segment.end if self.answer is None else self.answer.end

    async def answers(self, chunks: Iterable[tuple[Inputs, ChainRequest | None]], timeout: float) -> list[torch.Tensor]:
        """Sends the next tokens of the texts in several steps, without waiting for each answer; returns their outputs.

        `chunks` has the inputs of each step, and where to pass them on (see `send`). Raises `TimeoutError` if an answer
        takes longer than `timeout` seconds, and `ConnectionResetError` if the server has ended the stream without a
        reason; for other errors, see `outputs`.
        """
        outputs, steps = list[torch.Tensor](), deque[SentStep]()
        try:
            for inputs, request in chunks:
                if len(steps) == _AHEAD:
                    outputs.append(await asyncio.wait_for(self.outputs(steps.popleft()), timeout))
                steps.append(await self.send(inputs, self.position, request))
            return outputs + [await asyncio.wait_for(self.outputs(step), timeout) for step in steps]
        except CacheLost as lost:
            for step in steps:  # the first of them has the reason
                with contextlib.suppress(CacheLost):
                    await asyncio.wait_for(self.outputs(step), timeout)
            raise self.failure or ConnectionResetError("the server has ended the stream") from lost

    async def close(self) -> None:
        """Ends the stream after the steps that were sent; the server then frees its memory."""
        from hivemind.proto import runtime_pb2

        self._stream.send(runtime_pb2.ExpertRequest(), [])  # a request without tensors ends the session
        self._stream.end()
        ended, _ = await asyncio.wait([self._reading], timeout=_CLOSING_SECONDS)
        if not ended:  # a dead server has nothing to free
            await self.drop()

    async def drop(self) -> None:
        """Closes the connection after a failure."""
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        """Delivers the answers in the order of the steps; a failure goes to the first unanswered one."""
        try:
            async for answer in self._stream.answers(self._largest_answer):
                if not self._unanswered:
                    raise WrongAnswer("an answer to nothing")
                self._hand_out(answer)
        except Exception as error:  # any error of the daemon, the connection or the server
            if self._unanswered:
                self._hand_out(error)
            else:
                self.failure = error
        finally:
            self._stream.close()
            while self._unanswered:
                self._hand_out(CacheLost())

    def _largest_answer(self) -> int:
        """Returns the most bytes of tensors in the next answer: hivemind may serialize bfloat16 as float32."""
        return 4 * self._unanswered[0].shape.numel() if self._unanswered else 0

    def _hand_out(self, answer: Answer | Exception) -> None:
        waiting = self._unanswered.popleft().answer
        if not waiting.done():  # not given up
            waiting.set_result(answer)


def whole_text_request(
    transport: Transport,
    segment: Span,
    hidden: torch.Tensor,
    deep_prompts: torch.Tensor | None,
    request_tokens: int | None = None,
) -> Request:
    """Returns the request to a given server for texts that are too long for a message.

    `hidden` has the inputs of the segment's first block, a float tensor of shape [rows, length, hidden]. `deep_prompts`
    has those of all blocks of the model, of shape [blocks, pre_seq_len, hidden]. For `request_tokens`, see
    `chunk_tokens`.
    """
    rows, length, _ = hidden.shape

    async def send(timeout: float) -> torch.Tensor:
        try:
            prompts = await transport.prompts.of(deep_prompts).packed(segment)
            cache = await ServerCache.open(transport, segment, length, prompts, rolls_back=False)
            try:
                chunks = Inputs.of(hidden).chunks(chunk_tokens(rows, deep_prompts, request_tokens))
                return torch.cat(await cache.answers([(chunk, None) for chunk in chunks], timeout), dim=1)
            finally:
                await cache.close()
        except ChooseAgain as error:  # this is its own failure; otherwise it would be sent again
            raise SwarmError(str(error)) from error

    return Request(send, tokens_in(hidden) * (segment.end - segment.start))


def chunk_tokens(rows: int, deep_prompts: torch.Tensor | None, request_tokens: int | None) -> int:
    """Returns how many tokens of each of `rows` texts fit into a message.

    `deep_prompts` has shape [blocks, pre_seq_len, hidden]; the first message must contain all their positions.
    `request_tokens` is the most that servers accept in a message, if less than `REQUEST_TOKENS`.
    """
    most = min(REQUEST_TOKENS, request_tokens or REQUEST_TOKENS)
    return max(1, most // rows, 0 if deep_prompts is None else deep_prompts.shape[1])
