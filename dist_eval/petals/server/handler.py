"""Petals' handler of requests behind a guard, which checks everything that a client sends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.protocol import ROLLS_BACK
from dist_eval.petals.client.streams import Answer
from dist_eval.petals.server.chain import ChainHandler
from dist_eval.petals.server.chained_session import SESSION_OVER, ChainedSession
from dist_eval.petals.server.embedding import Embedder
from dist_eval.petals.server.guard import Guard
from dist_eval.petals.server.guarded_p2p import GuardedP2P
from dist_eval.petals.server.metadata import Refused, read_metadata
from dist_eval.petals.server.request import Request
from dist_eval.petals.server.server_tasks import run_backward, run_forward, run_inference
from dist_eval.printable import printable
from dist_eval.process.memory_limits import total_memory

rolls_back = ContextVar("rolls_back", default=True)
"""Whether the session that is being opened may be rolled back."""

_SHARE_OF_REQUESTS = 4  # requests that are received or computed take at most 1/4 of a host's memory
_MOST_PUSHED = 8  # waiting steps of a session
_LONGEST_RECORD = 500  # characters of a line in the log
_PLAIN = 0  # `CompressionType.NONE`


def log_in_one_line() -> None:
    """Logs errors of requests without tracebacks."""
    for name in ("petals.server.handler", "hivemind.moe.server.runtime", "asyncio"):
        logging.getLogger(name).addFilter(_OneLine())


def request_memory() -> int:
    """Returns the most bytes that the requests of a server may take."""
    return total_memory() // _SHARE_OF_REQUESTS


def handler_class() -> Any:
    """Returns Petals' handler of requests, behind a guard."""
    from async_timeout import timeout
    from petals.server import handler

    petals_handler = handler.TransformerConnectionHandler

    class TransformerConnectionHandler(petals_handler):  # type: ignore[misc, valid-type]
        """Petals' handler behind a guard; it has the same name, by which clients call it."""

        embedder: Embedder | None = None  # on a server with the first block

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            backend = next(iter(self.module_backends.values()))
            self._chain = ChainHandler(self, self.embedder)
            self._guard = Guard(
                list(self.module_backends),
                width=backend.config.hidden_size,
                tokens=backend.forward_pool.max_batch_size,
                positions=self.inference_max_length,
                adapters=self.adapters or (),
            )

        async def add_p2p_handlers(self, p2p: Any, *args: Any, **kwargs: Any) -> None:
            handlers = len(self._handler_event_queues)
            memory = next(iter(self.module_backends.values())).forward_pool.memory
            memory.claim(self._handler_index, handlers)
            guarded = GuardedP2P(p2p, self._guard.request_bytes, request_memory() // handlers, memory)
            await super().add_p2p_handlers(guarded, *args, **kwargs)

        # hivemind reads names and annotations of arguments; `GuardedP2P` describes what these methods really get

        @functools.wraps(petals_handler.rpc_forward)
        async def rpc_forward(self, request: Request, context: Any) -> Answer:
            return await self._forward(request, context)

        @functools.wraps(petals_handler.rpc_backward)
        async def rpc_backward(self, request: Request, context: Any) -> Answer:
            return await self._backward(request, context)

        @functools.wraps(petals_handler.rpc_forward_stream)
        async def rpc_forward_stream(self, requests: Request, context: Any) -> Answer:
            return await self._forward(requests, context)

        @functools.wraps(petals_handler.rpc_backward_stream)
        async def rpc_backward_stream(self, requests: Request, context: Any) -> Answer:
            return await self._backward(requests, context)

        async def _forward(self, request: Request, context: Any) -> Answer:
            chained = self._guard.forward(request)
            async with timeout(self.request_timeout):
                if chained is None:
                    return await self._computed(run_forward, request, "rpc_forward", context)
                tensors = [tensor.tensor() for tensor in request.tensors]
                return await self._chain.answer(request.uid, tensors, chained, read_metadata(request.metadata))

        async def _backward(self, request: Request, context: Any) -> Answer:
            self._guard.backward(request)
            async with timeout(self.request_timeout):
                return await self._computed(run_backward, request, "rpc_backward", context)

        async def _computed(self, run: Callable[..., Any], request: Request, name: str, context: Any) -> Answer:
            """Computes a request of Petals' clients with this server's blocks."""
            uids, metadata = self._check_uids(request.uid), read_metadata(request.metadata)
            self._log_request(name, uids, context)
            backends = [self.module_backends[uid] for uid in uids]
            outputs = await run(
                *(tensor.tensor() for tensor in request.tensors),
                requested_backends=backends,
                active_adapter=self._get_active_adapter(metadata),
                prioritizer=self._prioritizer,
                points=metadata.get("points") or 0,
                args_structure=metadata.get("args_structure"),
            )
            outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
            kinds = metadata.get("output_compression") or [_PLAIN] * len(outputs)
            if len(kinds) != len(outputs):
                raise Refused(f"output_compression must have {len(outputs)} values, not {len(kinds)}")
            return Answer([_packed(tensor, kind) for tensor, kind in zip(outputs, kinds, strict=True)], b"")

        @functools.wraps(petals_handler.rpc_inference)
        async def rpc_inference(self, requests: AsyncIterator[Request], context: Any) -> AsyncIterator[Answer]:
            first = await anext(requests, None)
            if first is None:
                return
            metadata, chained = self._guard.opening(first)
            rolls_back.set(metadata.get(ROLLS_BACK) is not False)
            if chained is None:
                session = None
            else:
                session = ChainedSession(self, self._chain.servers, self.embedder, first.uid, chained, metadata)

            async def all_requests() -> AsyncIterator[Request]:
                yield first if session is None else await session.own_step(first, chained)
                async for request in requests:
                    step = self._guard.step(request, len(first.uid.split()))
                    if session is not None and request.tensors:
                        request = await session.own_step(request, step)
                    elif step is not None:
                        raise Refused("a step to be passed on, in a session that is not passed on")
                    yield request
                yield Request()  # ends the session, if the client has not done so

            own = self._session(all_requests(), context)
            async with contextlib.aclosing(own if session is None else session.answers(own)) as answers:
                async for answer in answers:
                    yield answer

        async def _session(self, requests: AsyncIterator[Request], context: Any) -> AsyncGenerator[Answer, None]:
            """Answers the steps of a session with this server's blocks, like Petals' `rpc_inference`."""
            first = await anext(requests)
            uids, metadata = self._check_uids(first.uid), read_metadata(first.metadata)
            backends, max_length = [self.module_backends[uid] for uid in uids], metadata["max_length"]
            self._log_request("rpc_inference.open", uids, context)
            pushing: set[asyncio.Task[None]] = set()
            try:
                async with (
                    timeout(self.session_timeout),
                    self._allocate_cache(
                        backends,
                        batch_size=first.tensors[0].size[0],
                        max_length=max_length,
                        timeout=float(metadata.get("alloc_timeout") or 0.0),
                    ) as handles,
                ):
                    steps = self._iterate_inference_steps(first, requests, metadata.get("session_id"), uids, context)
                    async for outputs, can_push in run_inference(
                        steps,
                        handles,
                        requested_backends=backends,
                        active_adapter=self._get_active_adapter(metadata),
                        prioritizer=self._prioritizer,
                        points=metadata.get("points") or 0,
                        args_structure=metadata.get("args_structure"),
                        max_length=max_length,
                    ):
                        answer = Answer([_packed(outputs, _PLAIN)], b"")
                        if can_push and metadata.get("next_servers"):
                            sent = self._push_outputs(first.message(), answer.tensors[0].message(), metadata)
                            pushing.add(task := asyncio.create_task(sent))
                            task.add_done_callback(pushing.discard)
                        yield answer
            except asyncio.TimeoutError:
                raise Refused(SESSION_OVER) from None
            finally:
                self._log_request("rpc_inference.close", uids, context)

        @functools.wraps(petals_handler.rpc_push)
        async def rpc_push(self, request: Request, context: Any) -> Any:
            self._guard.push(request)
            return await super().rpc_push(request.message(), context)

        async def _get_from_session_queue(self, session_id: str) -> Request | None:
            message = await super()._get_from_session_queue(session_id)
            return None if message is None else Request.of(message)

        @functools.wraps(petals_handler.rpc_info)
        async def rpc_info(self, request: Any, context: Any) -> Any:
            self._guard.info(request.uid)
            self._chain.prepare()
            return await super().rpc_info(request, context)

        @contextlib.contextmanager
        def _managed_session(self, session_id: str) -> Iterator[None]:
            with super()._managed_session(session_id):
                self._session_queues[session_id] = _Pushed()
                yield

    return TransformerConnectionHandler


def _packed(tensor: torch.Tensor, compression: int) -> Payload:
    from hivemind.compression.serialization import serialize_torch_tensor

    if compression == _PLAIN:
        return Payload.of(tensor)
    return Payload.of_message(serialize_torch_tensor(tensor, compression))


class _Pushed(asyncio.Queue[Any]):
    """Steps of a session that other servers push; excess ones are dropped, because the client sends them anyway."""

    def put_nowait(self, item: Any) -> None:
        if item is None or self.qsize() < _MOST_PUSHED:
            super().put_nowait(item)


class _OneLine(logging.Filter):
    """Formats records as one line, and drops those that `GuardedP2P` also logs or that Petals logs for each session."""

    _LEFT_OUT = "rpc_inference._iterate_inference_steps()", "Task was destroyed but it is pending"

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether to log a record."""
        text = record.getMessage()
        record.msg, record.args, record.exc_info = printable(text, _LONGEST_RECORD), (), None
        return not text.startswith(self._LEFT_OUT)
