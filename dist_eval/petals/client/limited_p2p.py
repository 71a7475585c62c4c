"""Calls to peers whose answers are limited: streams in bytes, errors in length, and those in what they are made of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.printable import printable

LONGEST_ERROR = 500
"""Characters that are kept of what a peer says about a failure."""

_SPARE_BYTES = 2**20
_LEAST_MESSAGE_BYTES = 2**10  # counted for a shorter message, so that empty ones come to an end, too


class Allowance:
    """What a peer may still send in a stream.

    Attributes:
        left: bytes.
    """

    def __init__(self, expected: int = 0) -> None:
        self.left = _SPARE_BYTES
        self.expect(expected)

    def expect(self, size: int) -> None:
        """Allows a number of bytes more, and some for what is around the tensors."""
        self.left += size + size // 4

    def take(self, size: int) -> None:
        """Records that a message of some bytes begins."""
        self.left -= max(size, _LEAST_MESSAGE_BYTES)
        if self.left < 0:
            raise WrongAnswer("a stream that is longer than any answer")


class LimitedP2P:
    """Takes the place of hivemind's `P2P` for the stub of one peer."""

    def __init__(self, p2p: Any, allowance: Allowance) -> None:
        self._p2p, self._allowance = p2p, allowance

    async def call_protobuf_handler(self, peer: Any, name: str, request: Any, answer_type: Any) -> Any:
        """Sends a message, and returns the answer; see `P2P.call_protobuf_handler`."""
        with printable_errors():
            return await self._p2p.call_protobuf_handler(peer, name, request, answer_type)

    async def iterate_protobuf_handler(
        self, peer: Any, name: str, requests: AsyncIterator[Any], answer_type: Any
    ) -> AsyncIterator[Any]:
        """Opens a stream of requests, and returns that of the answers; see `P2P.iterate_protobuf_handler`."""
        with printable_errors():
            _, reader, writer = await self._p2p.call_binary_stream_handler(peer, name)
        return self._answers(requests, answer_type, reader, writer)

    async def _answers(
        self, requests: AsyncIterator[Any], answer_type: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> AsyncIterator[Any]:
        """Yields what comes in messages of a marker, the length, and the content (`P2P.send_protobuf`)."""
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
    """Cuts and cleans what a peer, or the daemon about it, gives as the reason of a failure."""
    from hivemind.p2p import P2PDaemonError, P2PHandlerError

    try:
        yield
    except (P2PDaemonError, P2PHandlerError) as error:
        error.args = (printable(str(error), LONGEST_ERROR),)
        raise
