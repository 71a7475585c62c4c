"""Calls to peers with limited answers: streams in bytes, and errors in length and to printable characters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.printable import printable

LONGEST_ERROR = 500
"""Most characters kept of a peer's error message."""

_SPARE_BYTES = 2**20
_LEAST_MESSAGE_BYTES = 2**10  # counted for shorter messages, which limits the number of empty ones


class Allowance:
    """Limits the bytes that a peer may send in a stream.

    Attributes:
        left: bytes that it may still send.
    """

    def __init__(self, expected: int = 0) -> None:
        self.left = _SPARE_BYTES
        self.expect(expected)

    def expect(self, size: int) -> None:
        """Allows more bytes of tensors, and some for the rest of their messages."""
        self.left += size + size // 4

    def take(self, size: int) -> None:
        """Counts the bytes of the next message."""
        self.left -= max(size, _LEAST_MESSAGE_BYTES)
        if self.left < 0:
            raise WrongAnswer("a stream that is longer than any answer")


class LimitedP2P:
    """Replaces hivemind's `P2P` for the stub of one peer."""

    def __init__(self, p2p: Any, allowance: Allowance) -> None:
        self._p2p, self._allowance = p2p, allowance

    async def call_protobuf_handler(self, peer: Any, name: str, request: Any, answer_type: Any) -> Any:
        """Sends a message and returns the answer; see `P2P.call_protobuf_handler`."""
        with printable_errors():
            return await self._p2p.call_protobuf_handler(peer, name, request, answer_type)

    async def iterate_protobuf_handler(
        self, peer: Any, name: str, requests: AsyncIterator[Any], answer_type: Any
    ) -> AsyncIterator[Any]:
        """Opens a stream of requests, and returns the stream of answers; see `P2P.iterate_protobuf_handler`."""
        with printable_errors():
            _, reader, writer = await self._p2p.call_binary_stream_handler(peer, name)
        return self._answers(requests, answer_type, reader, writer)

    async def _answers(
        self, requests: AsyncIterator[Any], answer_type: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> AsyncIterator[Any]:
        """Yields received messages: a marker, the length, and the content of each (`P2P.send_protobuf`)."""
        from hivemind.p2p import P2P, P2PHandlerError
        from hivemind.proto.p2pd_pb2 import RPCError

        async def send() -> None:
            async for request in requests:
                await P2P.send_protobuf(request, writer)
            await P2P.send_protobuf(P2P.END_OF_STREAM, writer)

        sending = asyncio.create_task(send())
        try:
            while marker := await reader.read(len(P2P.MESSAGE_MARKER)):
                size = int.from_bytes(await reader.readexactly(P2P.HEADER_LEN), P2P.BYTEORDER)
                self._allowance.take(size)
                content = await reader.readexactly(size)
                if marker != P2P.MESSAGE_MARKER:
                    raise P2PHandlerError(printable(RPCError.FromString(content).message, LONGEST_ERROR))
                yield answer_type.FromString(content)
            if not sending.done():
                raise ConnectionResetError("the server ended the stream")
            await sending
        finally:
            sending.cancel()
            writer.close()


@contextlib.contextmanager
def printable_errors() -> Iterator[None]:
    """Truncates and cleans the error messages of a peer, or of the daemon about it."""
    from hivemind.p2p import P2PDaemonError, P2PHandlerError

    try:
        yield
    except (P2PDaemonError, P2PHandlerError) as error:
        error.args = (printable(str(error), LONGEST_ERROR),)
        raise
