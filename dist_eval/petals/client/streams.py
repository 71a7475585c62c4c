"""Streams requests to servers that are too large for one message, without copies (see `tensor_stream`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.petals.client.limited_p2p import LONGEST_ERROR, Allowance, printable_errors
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.raw_stream import RawStream
from dist_eval.petals.client.tensor_stream import (
    Arena,
    MalformedStream,
    PeerError,
    TensorReader,
    write_error,
    write_tensors,
)
from dist_eval.printable import printable

PART_BYTES = 4 << 20
"""Largest part of a tensor in a message: `DEFAULT_MAX_MSG_SIZE` of hivemind."""

_OPEN_SECONDS = 5.0


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
) -> Answer:
    """Sends a request to a server in a stream, and reads the answer.

    Args:
        p2p: the `hivemind.P2P`.
        peer: the server.
        name: name of the method.
        request: `runtime_pb2.ExpertRequest` without tensors.
        payloads: its tensors, which must not change until the answer arrives.
        largest_answer: most bytes of tensors in the answer.
        timeout: seconds to wait for each message of the answer.

    Raises:
        WrongAnswer: the answer is malformed or too large.
        EOFError, OSError: the stream ended too early.
        asyncio.TimeoutError: a message did not arrive in time.
        P2PHandlerError: the server answered with an error.
        P2PDaemonError: there is no connection.
    """
    with printable_errors():
        opening = p2p.call_binary_stream_handler(peer, name)
        _, reader, writer = await asyncio.wait_for(opening, _OPEN_SECONDS)
    stream = await RawStream.take(reader, writer)
    sending = asyncio.create_task(send_request(stream, request, payloads))
    try:
        answer = await receive_answer(stream, largest_answer, timeout)
        if not sending.done():
            raise ConnectionResetError("the server ended the stream before the request")
        await sending
        return answer
    finally:
        await end_tasks(sending)  # before closing the connection that it uses
        stream.close()


async def send_request(
    stream: RawStream, request: Any, payloads: Sequence[Payload], part_bytes: int = PART_BYTES
) -> None:
    """Writes a request; see `call_stream`."""
    from hivemind.proto import runtime_pb2

    before = runtime_pb2.ExpertRequest(uid=request.uid).SerializeToString()
    behind = runtime_pb2.ExpertRequest(metadata=request.metadata).SerializeToString()
    await write_tensors(stream, payloads, lambda _: (before, behind), part_bytes)
    await write_error(stream)


async def send_answer(stream: RawStream, answer: Answer, part_bytes: int = PART_BYTES) -> None:
    """Writes an answer; its tensors must not change meanwhile."""
    from hivemind.proto import runtime_pb2

    metadata = runtime_pb2.ExpertResponse(metadata=answer.metadata).SerializeToString()
    await write_tensors(stream, answer.tensors, lambda is_first: (b"", metadata if is_first else b""), part_bytes)


async def receive_answer(stream: RawStream, largest: int, timeout: float) -> Answer:
    """Reads an answer; see `call_stream`."""
    from hivemind.p2p import P2PHandlerError
    from hivemind.proto import runtime_pb2

    allowance = Allowance(largest)
    reader = TensorReader(stream, runtime_pb2.ExpertResponse, Arena(allowance.left), allowance.take)
    loop, metadata = asyncio.get_running_loop(), b""
    deadline = loop.time() + timeout * (1 - -largest // PART_BYTES)
    try:
        while (message := await asyncio.wait_for(reader.next(), min(timeout, deadline - loop.time()))) is not None:
            metadata = metadata or message.metadata
    except PeerError as error:
        raise P2PHandlerError(printable(str(error), LONGEST_ERROR) or "an error without a reason") from None
    except MalformedStream as error:
        raise WrongAnswer(str(error)) from error
    if not (payloads := reader.payloads):
        raise ConnectionResetError("the server ended the stream without an answer")
    return Answer(payloads, metadata)


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks, and waits until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it
