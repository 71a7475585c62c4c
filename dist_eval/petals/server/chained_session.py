"""Passes the steps of a session on to the server of the next blocks, as `ChainHandler` does with single requests.

A client's steps are converted to Petals' steps for this server's blocks. Their outputs are sent on while the next steps
are computed. Any failure ends the session with the next server, and from then on this server answers with its own
outputs. The session with the next server always ends with this one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import torch

from dist_eval.errors import one_line
from dist_eval.petals.client.chain import ChainAnswer, ChainRequest, HopTimes, read_chain_answer
from dist_eval.petals.client.deep_prompts import Packed
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.outputs import require_usable
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.protocol import ROLLS_BACK
from dist_eval.petals.client.server_cache import CacheLost, ChainCut, SentStep, ServerCache
from dist_eval.petals.client.streams import Answer
from dist_eval.petals.client.transport import Transport
from dist_eval.petals.server.chain import LONGEST_REASON, AnnouncedServers, Connection, pack_answer
from dist_eval.petals.server.embedding import Embedder
from dist_eval.petals.server.guarded_p2p import end_tasks
from dist_eval.petals.server.metadata import Refused, read_metadata
from dist_eval.petals.server.request import Request
from dist_eval.printable import printable

_REPLACED = "args_structure", *ChainRequest.model_fields  # keys of a step's metadata
SESSION_OVER = "the session has reached its time limit"

_AHEAD = 3  # most steps that the next server has not answered yet


@dataclass(frozen=True)
class _Step:
    """A step of a client, without its inputs."""

    request: ChainRequest
    came_at: float
    position: int | None  # where it starts, if it does not follow the previous step
    order: torch.Tensor
    deep: torch.Tensor  # deep prompts for the servers after this one; empty if there are none


@dataclass(frozen=True)
class _Passed:
    """A step that was sent on."""

    cache: ServerCache
    step: SentStep
    sent_at: float


class ChainedSession:
    """A session of a client, or of the server before this one.

    Petals' `handler` computes. Without an `embedder`, this server cannot embed token ids. `uid` names its blocks;
    `opening` and `metadata` are those of the first step.
    """

    def __init__(
        self,
        handler: Any,
        servers: AnnouncedServers,
        embedder: Embedder | None,
        uid: str,
        opening: ChainRequest,
        metadata: Mapping[str, Any],
    ) -> None:
        self._handler, self._servers, self._embedder, self._opening = handler, servers, embedder, opening
        self._backends = [handler.module_backends[one] for one in handler._check_uids(uid)]
        self._start, self._end = (int(self._backends[place].name.rpartition(".")[2]) for place in (0, -1))
        self._end += 1
        if opening.chain and opening.chain[0].start != self._end:
            raise Refused(f"a chain that continues at block {opening.chain[0].start}, not {self._end}")
        self._adapter: str = handler._get_active_adapter(metadata) or ""
        self._max_length, self._rolls_back = metadata["max_length"], metadata.get(ROLLS_BACK) is not False
        self._steps: deque[_Step] = deque()
        self._has_begun = False
        self._next: ServerCache | None = None  # the session with the next server
        self._why = ""  # why that session has ended

    async def own_step(self, received: Request, request: ChainRequest | None) -> Request:
        """Converts a step that a `Guard` has admitted to one for this server alone.

        Refuses another route than that of the first step, token ids that this server cannot embed, and prompts after
        the first step.
        """
        from hivemind.utils.serializer import MSGPackSerializer

        came_at = time.monotonic()
        if request is None or request.servers != self._opening.servers[: len(request.servers)]:
            raise Refused("a step with another route than the first one of its session")
        metadata = read_metadata(received.metadata)
        inputs, prompts, order, *soft = received.tensors
        if request.ids:
            if self._embedder is None or self._start:
                raise Refused("token ids, which only the server of the first block can embed")
            ids, before = (payload.tensor() for payload in (inputs, *soft))
            hidden = await asyncio.to_thread(self._embedder.embedded, ids, before)
            inputs = Payload.of(hidden.to(self._backends[0].dtype))
        blocks = len(self._backends)
        deep, digests = prompts.tensor(), (request.prompts or [])[:blocks]
        if (deep.numel() or digests) and self._has_begun:
            raise Refused("prompts after the first step of a session that is passed on")
        if deep.numel():
            prompts, deep = Payload.of(deep[:blocks]), deep[blocks:]
        self._has_begun = True
        position = metadata.get("start_from_position")
        self._steps.append(_Step(request, came_at, position, order.tensor(), deep))
        own = ChainRequest(chain=[], rows=None if request.chain else request.rows, prompts=digests or None).packed()
        others = {name: value for name, value in metadata.items() if name not in _REPLACED}
        packed = MSGPackSerializer.dumps({**others, **own})
        return Request(received.uid, [inputs, prompts, order], packed)

    async def answers(self, own: AsyncGenerator[Answer, None]) -> AsyncGenerator[Answer, None]:
        """Answers the steps, given this server's own answers to the steps of `own_step`."""
        computed, ahead = asyncio.Queue[Any](), asyncio.Semaphore(_AHEAD)
        computing = asyncio.create_task(self._compute(own, computed, ahead))
        try:
            while (found := await computed.get()) is not None:
                if isinstance(found, Exception):
                    raise found
                ahead.release()
                yield await self._answer(*found)
            if self._next is not None:
                await self._next.close()
        finally:
            try:
                await end_tasks([computing])
            finally:
                await self._leave_next()

    async def _compute(
        self, own: AsyncGenerator[Answer, None], computed: asyncio.Queue[Any], ahead: asyncio.Semaphore
    ) -> None:
        """Computes this server's own outputs and passes them on; None or an error comes last."""
        # the session's time limit cancels this task, wherever it waits
        end: Exception | None = Refused(SESSION_OVER)
        try:
            async with aclosing(own):
                async for answer in own:
                    step = self._steps.popleft()
                    times = HopTimes(own=time.monotonic() - step.came_at)
                    passed = await self._pass_on(answer, step)
                    await ahead.acquire()
                    computed.put_nowait((answer, step, times, passed))
            end = None
        except Exception as error:  # any error of the guard, of Petals or of a block
            end = error
        finally:
            computed.put_nowait(end)

    async def _pass_on(self, answer: Answer, step: _Step) -> _Passed | None:
        """Sends this server's outputs to the next one, if that server has all earlier ones."""
        if self._why or not self._opening.chain:
            return None
        try:
            if not step.request.chain:
                raise Refused("the client's step leaves the next server out")
            hidden = answer.tensors[0].tensor()
            require_usable(hidden)
            cache = self._next = self._next or await self._open_next(step)
            position = cache.position if step.position is None else step.position
            sent_at = time.monotonic()
            sent = await cache.send(Inputs.of(hidden), position, step.request.after_first(), step.order)
            return _Passed(cache, sent, sent_at)
        except CacheLost:  # an earlier step gets the reason, if one is unanswered
            if self._next is not None and self._next.failure is not None:
                await self._leave_next(self._next.failure)
            return None
        except Exception as error:  # any error of the DHT, the daemon, the connection or the next server
            await self._leave_next(error)
            return None

    async def _open_next(self, step: _Step) -> ServerCache:
        span = await self._servers.named(self._opening.chain[0], self._adapter, in_session=True)
        connection = Connection(self._handler._p2p, self._handler.dht_prefix, self._adapter or None)
        return await ServerCache.open(
            Transport(connection, timeout=self._handler.request_timeout),
            span,
            self._max_length,
            Packed(step.deep),
            rolls_back=self._rolls_back,
        )

    async def _answer(self, answer: Answer, step: _Step, times: HopTimes, passed: _Passed | None) -> Answer:
        """Returns the answer of the servers after this one, or its own."""
        if passed is not None:
            hops = step.request.chain
            seconds = min(hops[0].patience, self._handler.request_timeout)
            try:
                try:
                    theirs = await asyncio.wait_for(passed.cache.answer_to(passed.step), seconds)
                    found, outputs = read_chain_answer(theirs.metadata, [hop.end for hop in hops]), theirs.tensors
                except ChainCut as cut:  # servers after the next one have lost the session
                    await self._leave_next(cut)
                    found, outputs = cut.answer, cut.outputs
                own = times.model_copy(update={"call": time.monotonic() - passed.sent_at})
                return Answer(outputs, pack_answer(found.preceded_by(own)))
            except Exception as error:  # any error of the daemon, the connection or the next server
                await self._leave_next(error)
        why = self._why or ("the next server has ended the session" if step.request.chain else "")
        chain = ChainAnswer(end=self._end, hops=[times], why=why)
        return Answer(answer.tensors, pack_answer(chain))

    async def _leave_next(self, error: Exception | None = None) -> None:
        if error is not None:
            self._why = self._why or printable(one_line(error), LONGEST_REASON)
        cache, self._next = self._next, None
        if cache is not None:
            await cache.drop()
