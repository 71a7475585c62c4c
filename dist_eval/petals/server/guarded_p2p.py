"""Where requests arrive at a server: how many there may be at once, how large, and how long one may take to come.

hivemind bounds none of these for streams: a message is as long as it says, and one that never ends is waited for.
Whatever fails here is one sentence in the server's log, and the same one for the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import Any

from dist_eval.petals.server.metadata import Refused
from dist_eval.printable import printable

REQUESTS_OF_A_PEER, REQUESTS = 128, 512
"""Most requests and sessions at a handler at once, of one client and of all."""

FIRST_MESSAGE_SECONDS, IDLE_SECONDS = 30.0, 300.0
"""How long a stream may say nothing: before its first message, and later."""

MESSAGE_SECONDS, SLOWEST = 30.0, 1 << 16
"""How long a message may take, either way, once it has begun: this, and a second for so many bytes."""

_AHEAD = 5  # messages of a stream that are read before they are asked for
_LEAST_MESSAGE_BYTES = 1 << 10  # counted for a shorter one, so that empty ones come to an end, too
_LONGEST_ERROR = 500
_CANCEL_SECONDS, _DISCARD_SECONDS = 0.1, 2.0

logger = logging.getLogger(__name__)


class GuardedP2P:
    """Takes the place of hivemind's `P2P` where a handler registers its methods.

    Args:
        p2p: hivemind's.
        request_bytes: largest request, which may be a message of a session or a whole stream of another kind.
        total_bytes: of all requests that are being received or computed.
    """

    def __init__(self, p2p: Any, request_bytes: int, total_bytes: int) -> None:
        self._p2p = p2p
        self._request_bytes, self._bytes_left = min(request_bytes, total_bytes), total_bytes
        self._peers: Counter[Any] = Counter()

    async def add_protobuf_handler(
        self,
        name: str,
        handler: Callable[[Any, Any], Any],
        request_type: Any,
        *,
        stream_input: bool = False,
        stream_output: bool = False,
        balanced: bool = False,
    ) -> None:
        """Registers a method; see `P2P.add_protobuf_handler`."""
        from hivemind.p2p import P2PContext

        async def unary(request: Any, context: Any) -> Any:
            peer = context.remote_id
            with self._reported(name, peer), self._admitted(peer), self._held(request.ByteSize()):
                return await handler(request, context)

        async def stream(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            context = P2PContext(handle_name=name, local_id=self._p2p.peer_id, remote_id=info.peer_id)
            await self.answer(lambda requests: handler(requests, context), request_type, name, info, reader, writer)

        if stream_input and stream_output:
            await self._p2p.add_binary_stream_handler(name, stream, balanced=balanced)
        else:
            assert not stream_input and not stream_output, "a handler has no such methods"
            await self._p2p.add_protobuf_handler(name, unary, request_type, balanced=balanced)

    async def answer(
        self,
        handler: Callable[[AsyncIterator[Any]], AsyncGenerator[Any, None]],
        request_type: Any,
        name: str,
        info: Any,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Answers a stream until it ends, fails or is given up."""
        from hivemind.proto.p2pd_pb2 import RPCError

        with closing(writer):
            try:
                with self._reported(name, info.peer_id), self._admitted(info.peer_id):
                    await self._converse(handler, request_type, name, reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                return
            except Exception as error:
                with contextlib.suppress(Exception):  # nobody may be there any more
                    await _send(RPCError(message=str(error) or type(error).__name__), writer)
                    await asyncio.wait_for(_discard(reader), _DISCARD_SECONDS)

    async def _converse(
        self,
        handler: Callable[[AsyncIterator[Any]], AsyncGenerator[Any, None]],
        request_type: Any,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        received: asyncio.Queue[Any] = asyncio.Queue(_AHEAD)
        is_session = name.endswith("rpc_inference")

        with self._held(0) as hold:

            async def requests() -> AsyncIterator[Any]:
                while True:
                    message, size = await received.get()
                    if message is None:
                        return
                    yield message
                    if is_session:  # which is done with it
                        hold(-size)

            async def answer() -> None:
                async with aclosing(handler(requests())) as responses:
                    async for response in responses:
                        await _send(response, writer)

            async def read() -> None:
                limit = FIRST_MESSAGE_SECONDS
                while True:
                    message, size = await self._read(request_type, reader, limit, hold)
                    await received.put((message, size))
                    limit = IDLE_SECONDS if message is not None else float("inf")  # until it is given up

            tasks = [asyncio.create_task(answer()), asyncio.create_task(read())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    await task
            finally:
                await _end(tasks)

    async def _read(
        self, request_type: Any, reader: asyncio.StreamReader, limit: float, hold: Callable[[int], None]
    ) -> tuple[Any, int]:
        """Reads a message of a marker, a length and a content (`P2P.send_protobuf`).

        Returns:
            The message, None for the end of them, and how many bytes were counted for it.
        """
        from hivemind.p2p import P2P

        begin = reader.readexactly(len(P2P.MESSAGE_MARKER))
        marker = await _in_time(begin, limit, "a stream that says nothing")
        header = reader.readexactly(P2P.HEADER_LEN)
        size = int.from_bytes(await _in_time(header, MESSAGE_SECONDS, "a message that does not come"), P2P.BYTEORDER)
        if marker not in (P2P.MESSAGE_MARKER, P2P.ERROR_MARKER):
            raise Refused("a stream that is not one of messages")
        if size > self._request_bytes:
            raise Refused(f"a message of {size} bytes is too large: at most {self._request_bytes} are read")
        counted = max(size, _LEAST_MESSAGE_BYTES)
        hold(counted)
        content = await _in_time(reader.readexactly(size), _seconds_for(size), "a message that comes too slowly")
        if marker == P2P.ERROR_MARKER:
            return None, counted
        try:
            return request_type.FromString(content), counted
        except Exception as error:  # of protobuf
            raise Refused("a message that cannot be read") from error

    @contextmanager
    def _admitted(self, peer: Any) -> Iterator[None]:
        """Counts a request while it is here.

        Raises:
            Refused: there are too many.
        """
        if self._peers[peer] >= REQUESTS_OF_A_PEER:
            raise Refused(f"busy: {REQUESTS_OF_A_PEER} requests of this client are here, the most at once")
        if self._peers.total() >= REQUESTS:
            raise Refused(f"busy: {REQUESTS} requests are here, the most at once")
        self._peers[peer] += 1
        try:
            yield
        finally:
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]

    @contextmanager
    def _held(self, size: int) -> Iterator[Callable[[int], None]]:
        """Counts the bytes of a request while it is here; yields what adds to them, or takes off.

        Raises:
            Refused: there are too many, also when some are added.
        """
        held = 0

        def hold(more: int) -> None:
            nonlocal held
            if held + more > self._request_bytes:
                raise Refused(f"a request is too large: at most {self._request_bytes} bytes are read")
            if more > self._bytes_left:
                raise Refused("busy: the requests that are here take all the memory that there is for them")
            held += more
            self._bytes_left -= more

        hold(size)
        try:
            yield hold
        finally:
            self._bytes_left += held

    @contextmanager
    def _reported(self, name: str, peer: Any) -> Iterator[None]:
        """Logs what a request fails with, in one sentence, to which its text is cut for the client, too."""
        try:
            yield
        except (ConnectionError, asyncio.IncompleteReadError):  # the client is gone
            raise
        except Exception as error:
            if len(text := str(error)) > _LONGEST_ERROR:
                error.args = (printable(text, _LONGEST_ERROR),)
            text = printable(str(error)) or type(error).__name__
            logger.warning(f"{name.partition('.')[2]} of peer ...{str(peer)[-6:]}: {text}")
            raise


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancels tasks again until they have ended: `asyncio.wait_for` may miss it, up to Python 3.11."""
    while tasks := [task for task in tasks if not task.done()]:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)


def _seconds_for(size: int) -> float:
    return MESSAGE_SECONDS + size / SLOWEST


async def _discard(reader: asyncio.StreamReader) -> None:
    """Reads on until the client has read why it was refused, which it may not if the connection is cut before."""
    while await reader.read(1 << 16):
        continue


async def _in_time(coming: Any, seconds: float, what: str) -> Any:
    try:
        return await asyncio.wait_for(coming, None if seconds == float("inf") else seconds)
    except asyncio.TimeoutError:
        raise Refused(f"{what} for {seconds:.0f} s") from None


async def _send(message: Any, writer: asyncio.StreamWriter) -> None:
    from hivemind.p2p import P2P

    sending = P2P.send_protobuf(message, writer)
    await _in_time(sending, _seconds_for(message.ByteSize()), "an answer that was not taken")
