"""Streams to servers, without copies (see `tensor_stream`): large requests, and sessions.

Answers are limited in bytes, and errors in length and to printable characters.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.petals.client.kept_streams import KeptStreams
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.raw_stream import RawStream
from dist_eval.petals.client.tensor_stream import (
    Arena,
    MalformedStream,
    PeerError,
    TensorReader,
    counted_bytes,
    write_error,
    write_message,
    write_tensors,
)
from dist_eval.printable import printable

PART_BYTES = 4 << 20
"""Largest part of a tensor in a message: `DEFAULT_MAX_MSG_SIZE` of hivemind."""

LONGEST_ERROR = 500
"""Most characters of an error message of a peer or to one."""

_OPEN_SECONDS = 5.0
_SPARE_BYTES = 1 << 20  # of an answer, besides its tensors


class Answer(NamedTuple):
    """A server's answer, still serialized."""

    tensors: Sequence[Payload]
    metadata: bytes

    def message(self) -> Any:
        """Returns it as a `runtime_pb2.ExpertResponse`."""
        from hivemind.proto import runtime_pb2

        return runtime_pb2.ExpertResponse(tensors=[tensor.message() for tensor in self.tensors], metadata=self.metadata)


async def call_stream(
    p2p: Any,
    peer: Any,
    name: str,
    request: Any,
    payloads: Sequence[Payload],
    *,
    largest_answer: int,
    timeout: float,
    kept: KeptStreams | None = None,
) -> Answer:
    """Sends a request to a server in a stream, and reads the answer.

    Raises `WrongAnswer` if the answer is malformed or too large, `EOFError` or `OSError` if the stream ended too early,
    `asyncio.TimeoutError` if a message did not arrive in time, `P2PHandlerError` if the server answered with an error,
    and `P2PDaemonError` if there is no connection.

    Args:
        p2p: the `hivemind.P2P`.
        peer: the server.
        name: name of the method.
        request: `runtime_pb2.ExpertRequest` without tensors.
        payloads: its tensors, which must not change until the answer arrives.
        largest_answer: most bytes of tensors in the answer.
        timeout: seconds to wait for each message of the answer.
        kept: idle streams, if the request asks the server to keep its stream open.
    """
    from hivemind.p2p import P2PHandlerError

    began = time.monotonic()

    async def call_on(stream: RawStream) -> Answer:
        sending = asyncio.create_task(send_request(stream, request, payloads))
        try:
            answer, stays_open = await receive_answer(stream, largest_answer, timeout, may_stay_open=kept is not None)
            if not sending.done():
                raise ConnectionResetError("the server ended the stream before the request")
            await sending
        except BaseException as error:
            _close_after(sending, stream)
            has_given_up = isinstance(error, asyncio.CancelledError) and time.monotonic() - began < timeout / 2
            if kept is not None and not has_given_up and not isinstance(error, P2PHandlerError):
                kept.drop(peer, name)  # the others are likely to fail as well
            raise
        if kept is not None and stays_open:
            kept.put(peer, name, stream)
        else:
            stream.close()
        return answer

    stream = kept.take(peer, name) if kept is not None else None
    if stream is not None:
        before = stream.position
        try:
            return await call_on(stream)
        except (EOFError, ConnectionError):  # the server has closed it meanwhile
            if stream.position > before:
                raise
    return await call_on(await _open(p2p, peer, name))


async def _open(p2p: Any, peer: Any, name: str) -> RawStream:
    with printable_errors():
        opening = p2p.call_binary_stream_handler(peer, name)
        _, reader, writer = await asyncio.wait_for(opening, _OPEN_SECONDS)
    return await RawStream.take(reader, writer)


async def send_request(
    stream: RawStream, request: Any, payloads: Sequence[Payload], part_bytes: int = PART_BYTES
) -> None:
    """Writes a request; see `call_stream`."""
    fields = _fields_of(request)
    await write_tensors(stream, payloads, lambda _: fields, part_bytes)
    await write_error(stream)


def _fields_of(request: Any) -> tuple[bytes, bytes]:
    """Returns the bytes of a message before and after its tensors."""
    from hivemind.proto import runtime_pb2

    before = runtime_pb2.ExpertRequest(uid=request.uid).SerializeToString()
    return before, runtime_pb2.ExpertRequest(metadata=request.metadata).SerializeToString()


async def send_answer(stream: RawStream, answer: Answer, part_bytes: int = PART_BYTES) -> None:
    """Writes an answer; its tensors must not change meanwhile."""
    from hivemind.proto import runtime_pb2

    metadata = runtime_pb2.ExpertResponse(metadata=answer.metadata).SerializeToString()
    await write_tensors(stream, answer.tensors, lambda is_first: (b"", metadata if is_first else b""), part_bytes)


async def receive_answer(
    stream: RawStream, largest: int, timeout: float, *, may_stay_open: bool = False
) -> tuple[Answer, bool]:
    """Reads an answer; see `call_stream`. Also returns whether the server has kept the stream open."""
    reader, loop, metadata, stays_open = _answer_reader(stream, largest), asyncio.get_running_loop(), b"", False
    deadline = loop.time() + timeout * (1 - -largest // PART_BYTES)
    with _translating_errors():
        try:
            while (message := await asyncio.wait_for(reader.next(), min(timeout, deadline - loop.time()))) is not None:
                metadata = metadata or message.metadata
        except PeerError as error:
            stays_open = may_stay_open and bool(reader.payloads) and not str(error)
            if not stays_open:
                raise
    if not (payloads := reader.payloads):
        raise ConnectionResetError("the server ended the stream without an answer")
    return Answer(payloads, metadata), stays_open


class SessionStream:
    """A stream of requests, each of which the server answers with one message."""

    def __init__(self, stream: RawStream) -> None:
        self._stream = stream
        self._requests: asyncio.Queue[tuple[Any, Sequence[Payload]] | None] = asyncio.Queue()
        self._sending = asyncio.create_task(self._send())

    @classmethod
    async def open(cls, p2p: Any, peer: Any, name: str) -> SessionStream:
        """Opens a stream to a method of a server; see `call_stream`."""
        return cls(await _open(p2p, peer, name))

    def send(self, request: Any, payloads: Sequence[Payload]) -> None:
        """Sends a request in the background.

        It is a `runtime_pb2.ExpertRequest` without tensors; these are in `payloads`, and must not change until they are
        written.
        """
        self._requests.put_nowait((request, payloads))

    def end(self) -> None:
        """Ends the stream once all requests are sent."""
        self._requests.put_nowait(None)

    async def answers(self, largest: Callable[[], int]) -> AsyncIterator[Answer]:
        """Yields the answers until the server closes the stream, which it does after `end`.

        `largest` returns the most bytes of tensors in the next answer; it is called when that begins. For errors, see
        `call_stream`.
        """
        with _translating_errors():
            while not await self._stream.at_end():
                reader = _answer_reader(self._stream, largest())
                message = await reader.next()
                yield Answer(reader.payloads, message.metadata)
        if not self._sending.done():
            raise ConnectionResetError("the server ended the stream")
        await self._sending

    def close(self) -> None:
        """Closes the connection; call it only when nothing reads answers."""
        _close_after(self._sending, self._stream)

    async def _send(self) -> None:
        while (one := await self._requests.get()) is not None:
            request, payloads = one
            await write_message(self._stream, payloads, *_fields_of(request))
            del one, request, payloads  # frees them while waiting
        await write_error(self._stream)


async def send_message(stream: RawStream, answer: Answer) -> None:
    """Writes an answer as one message, as in a session; its tensors must not change meanwhile."""
    from hivemind.proto import runtime_pb2

    behind = runtime_pb2.ExpertResponse(metadata=answer.metadata).SerializeToString()
    await write_message(stream, answer.tensors, b"", behind)


def _answer_reader(stream: RawStream, largest: int) -> TensorReader:
    """Returns the reader of an answer with at most so many bytes of tensors."""
    from hivemind.proto import runtime_pb2

    left = _SPARE_BYTES + largest + largest // 4

    def allow(size: int) -> None:
        nonlocal left
        left -= counted_bytes(size)
        if left < 0:
            raise WrongAnswer("a stream that is longer than any answer")

    return TensorReader(stream, runtime_pb2.ExpertResponse, Arena(left), allow)


@contextlib.contextmanager
def _translating_errors() -> Iterator[None]:
    """Converts the errors of a reader."""
    from hivemind.p2p import P2PHandlerError

    try:
        yield
    except PeerError as error:
        raise P2PHandlerError(printable(str(error), LONGEST_ERROR) or "an error without a reason") from None
    except MalformedStream as error:
        raise WrongAnswer(str(error)) from error


@contextlib.contextmanager
def printable_errors() -> Iterator[None]:
    """Truncates and cleans the error messages of a peer, or of the daemon about it."""
    from hivemind.p2p import P2PDaemonError, P2PHandlerError

    try:
        yield
    except (P2PDaemonError, P2PHandlerError) as error:
        error.args = (printable(str(error), LONGEST_ERROR),)
        raise


def _close_after(sending: asyncio.Task[None], stream: RawStream) -> None:
    """Ends a task that writes, and then closes its connection."""

    def close(sending: asyncio.Task[None]) -> None:
        if not sending.cancelled():
            sending.exception()  # retrieved, so that asyncio does not report it
        stream.close()

    sending.cancel()
    sending.add_done_callback(close)
