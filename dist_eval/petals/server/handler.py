"""Petals' handler of requests, behind a guard: what it is given was checked, whoever has sent it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import psutil

from dist_eval.petals.client.protocol import ROLLS_BACK
from dist_eval.petals.server.chain import ChainHandler
from dist_eval.petals.server.embedding import Embedder
from dist_eval.petals.server.guard import Guard
from dist_eval.petals.server.guarded_p2p import GuardedP2P
from dist_eval.petals.server.metadata import read_metadata
from dist_eval.printable import printable

rolls_back = ContextVar("rolls_back", default=True)
"""Whether the session that is opened may be rolled back."""

_SHARE_OF_REQUESTS = 4  # all that are received or computed take at most this part of a host's memory
_MOST_PUSHED = 8  # steps of a session that wait
_LONGEST_RECORD = 500  # characters of a line in the log


def log_in_one_line() -> None:
    """Has what requests fail with logged without tracebacks."""
    for name in ("petals.server.handler", "hivemind.moe.server.runtime", "asyncio"):
        logging.getLogger(name).addFilter(_OneLine())


def handler_class() -> Any:
    """Returns Petals' handler of requests, behind a guard."""
    from async_timeout import timeout
    from hivemind.compression.serialization import deserialize_torch_tensor
    from hivemind.p2p.p2p_daemon import DEFAULT_MAX_MSG_SIZE
    from hivemind.proto import runtime_pb2
    from hivemind.utils.streaming import split_for_streaming
    from petals.server import handler

    petals_handler = handler.TransformerConnectionHandler

    class TransformerConnectionHandler(petals_handler):  # type: ignore[misc, valid-type]
        """Petals' handler, by whose name it is called, behind a guard; sessions keep no more than they need."""

        embedder: Embedder | None = None  # of a server with the first block

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
            total = psutil.virtual_memory().total // _SHARE_OF_REQUESTS // len(self._handler_event_queues)
            await super().add_p2p_handlers(GuardedP2P(p2p, self._guard.request_bytes, total), *args, **kwargs)

        # hivemind reads the annotations of all methods

        @functools.wraps(petals_handler.rpc_forward)
        async def rpc_forward(self, request: Any, context: Any) -> Any:
            if (chained := self._guard.forward(request)) is None:
                return await super().rpc_forward(request, context)
            async with timeout(self.request_timeout):
                tensors = [deserialize_torch_tensor(tensor) for tensor in request.tensors]
                answer = await self._chain.answer(request.uid, tensors, chained, read_metadata(request.metadata))
                packed = [tensor.message() for tensor in answer.tensors]
                return runtime_pb2.ExpertResponse(tensors=packed, metadata=answer.metadata)

        @functools.wraps(petals_handler.rpc_backward)
        async def rpc_backward(self, request: Any, context: Any) -> Any:
            self._guard.backward(request)
            return await super().rpc_backward(request, context)

        @functools.wraps(petals_handler.rpc_forward_stream)
        async def rpc_forward_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for part in self._answer_in_parts(self.rpc_forward, requests, context):
                yield part

        @functools.wraps(petals_handler.rpc_backward_stream)
        async def rpc_backward_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for part in self._answer_in_parts(self.rpc_backward, requests, context):
                yield part

        async def _answer_in_parts(
            self, method: Callable[..., Any], requests: AsyncIterator[Any], context: Any
        ) -> AsyncIterator[Any]:
            request = await asyncio.wait_for(self._guard.gathered(requests), self.request_timeout)
            answer = await method(request, context)
            metadata = answer.metadata
            for tensor in answer.tensors:
                for part in split_for_streaming(tensor, DEFAULT_MAX_MSG_SIZE):
                    yield runtime_pb2.ExpertResponse(tensors=[part], metadata=metadata)
                    metadata = b""

        @functools.wraps(petals_handler.rpc_inference)
        async def rpc_inference(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            first = await anext(requests, None)
            if first is None:
                return
            metadata = self._guard.opening(first)
            rolls_back.set(metadata.get(ROLLS_BACK) is not False)

            async def all_requests() -> AsyncIterator[Any]:
                yield first
                async for request in requests:
                    self._guard.step(request, len(first.uid.split()))
                    yield request
                yield runtime_pb2.ExpertRequest()  # which ends the session, if the client has not said so

            async for answer in super().rpc_inference(all_requests(), context):
                yield answer

        @functools.wraps(petals_handler.rpc_push)
        async def rpc_push(self, request: Any, context: Any) -> Any:
            self._guard.push(request)
            return await super().rpc_push(request, context)

        @functools.wraps(petals_handler.rpc_info)
        async def rpc_info(self, request: Any, context: Any) -> Any:
            self._guard.info(request.uid)
            return await super().rpc_info(request, context)

        @contextlib.contextmanager
        def _managed_session(self, session_id: str) -> Iterator[None]:
            with super()._managed_session(session_id):
                self._session_queues[session_id] = _Pushed()
                yield

    return TransformerConnectionHandler


class _Pushed(asyncio.Queue[Any]):
    """Steps of a session that other servers have sent; those that are too many come from the client, anyway."""

    def put_nowait(self, item: Any) -> None:
        if item is None or self.qsize() < _MOST_PUSHED:
            super().put_nowait(item)


class _OneLine(logging.Filter):
    """Makes one line of each record, and leaves out what `GuardedP2P` says, too, or Petals of any session."""

    _LEFT_OUT = "rpc_inference._iterate_inference_steps()", "Task was destroyed but it is pending"

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether to log a record."""
        text = record.getMessage()
        record.msg, record.args, record.exc_info = printable(text, _LONGEST_RECORD), (), None
        return not text.startswith(self._LEFT_OUT)
