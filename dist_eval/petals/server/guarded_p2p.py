"""Receives requests at a server, and bounds their number, size and time.

hivemind bounds none of these for streams: it accepts any length, and waits for a message that never ends. A failure
here is one sentence in the server's log, and the same one for the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import Any, NoReturn

from dist_eval.petals.client.failures import drop_traceback
from dist_eval.petals.client.protocol import KEEPS_STREAM
from dist_eval.petals.client.raw_stream import RawStream
from dist_eval.petals.client.streams import LONGEST_ERROR, Answer, send_answer, send_message
from dist_eval.petals.client.tensor_stream import Arena, PeerError, TensorReader, counted_bytes, write_error
from dist_eval.petals.server.metadata import Refused, read_metadata
from dist_eval.petals.server.request import Request
from dist_eval.petals.server.shared_memory import SharedMemory
from dist_eval.printable import printable

REQUESTS_OF_A_PEER, REQUESTS = 128, 512
"""Most requests and sessions at a handler at once, of one client and of all."""

FIRST_MESSAGE_SECONDS, IDLE_SECONDS = 30.0, 300.0
"""How long a stream may be silent: before its first message, and later."""

MESSAGE_SECONDS, SLOWEST = 30.0, 1 << 16
"""Limit for a message or an answer once it has started: seconds, plus one per this number of bytes."""

REQUEST_SECONDS = 180.0
"""How long a request in several messages may take."""

_CANCEL_SECONDS, _DISCARD_SECONDS = 0.1, 2.0
_KEPT_SECONDS = 120.0  # how long a stream may wait for another request
_IDLE_OF_A_PEER, _MOST_IDLE = 64, 256  # how many may, of one client and of all, at a handler

logger = logging.getLogger(__name__)


class GuardedP2P:
    """Replaces hivemind's `P2P` where a handler registers its methods.

    A unary method gets a `Request`, or another message as it is, and returns an `Answer` or a message. So does a
    streaming method, because its stream is a single large request or answer. Only `rpc_inference` has many messages: it
    gets an iterator of `Request`s, and yields `Answer`s.

    Args:
        p2p: hivemind's `P2P`.
        request_bytes: largest request, which may be a message of a session or a whole stream of another kind.
        total_bytes: most bytes of all requests that are being received or computed.
        memory: memory into which streams are read.
    """

    def __init__(self, p2p: Any, request_bytes: int, total_bytes: int, memory: SharedMemory) -> None:
        self._p2p, self._memory = p2p, memory
        self._request_bytes, self._bytes_left = min(request_bytes, total_bytes), total_bytes
        self._peers: Counter[Any] = Counter()
        self._idle: Counter[Any] = Counter()  # streams that wait for another request

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
        from hivemind.proto import runtime_pb2

        async def unary(message: Any, context: Any) -> Any:
            peer = context.remote_id
            request = Request.of(message) if request_type is runtime_pb2.ExpertRequest else message
            size = request.nbytes if isinstance(request, Request) else message.ByteSize()
            with self._reported(name, peer), self._admitted(peer), self._reserved(size):
                answer = await handler(request, context)
                return answer.message() if isinstance(answer, Answer) else answer

        async def stream(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            context = P2PContext(handle_name=name, local_id=self._p2p.peer_id, remote_id=info.peer_id)
            await self.answer(lambda requests: handler(requests, context), name, info, reader, writer)

        if stream_input and stream_output:
            await self._p2p.add_binary_stream_handler(name, stream, balanced=balanced)
        else:
            assert not stream_input and not stream_output, "a handler has no such methods"
            await self._p2p.add_protobuf_handler(name, unary, request_type, balanced=balanced)

    async def answer(
        self,
        handler: Callable[[Any], Any],
        name: str,
        info: Any,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Answers a stream until it ends, fails or is abandoned."""
        with closing(await RawStream.take(reader, writer)) as stream:
            try:
                respond = self._converse if name.endswith("rpc_inference") else self._answer_one
                peer, is_open = info.peer_id, True
                while is_open:
                    with self._reported(name, peer), self._admitted(peer), self._reserved(0) as reserve:
                        may_continue = await respond(handler, stream, reserve)
                    is_open = may_continue and await self._continues(stream, peer)
            except (ConnectionError, EOFError) as error:
                drop_traceback(error)
            except Exception as error:
                drop_traceback(error)
                with contextlib.suppress(Exception):  # the client may be gone
                    if not stream.is_torn:
                        await asyncio.wait_for(write_error(stream, str(error) or type(error).__name__), MESSAGE_SECONDS)
                    # if the connection closes too early, a client may not read why it was refused
                    await asyncio.wait_for(stream.discard(), _DISCARD_SECONDS)

    async def _answer_one(
        self,
        handler: Callable[[Request], Coroutine[Any, Any, Answer]],
        stream: RawStream,
        reserve: Callable[[int], None],
    ) -> bool:
        """Answers a request; returns whether the client asks to keep the stream open."""
        request = await _in_time(self._whole(stream, reserve), REQUEST_SECONDS, "waited for a complete request")
        answer = await _while_there(handler(request), _require_silence(stream))
        await _deliver(send_answer, stream, answer)
        return _keeps_stream(request)

    async def _continues(self, stream: RawStream, peer: Any) -> bool:
        """Ends an answer, and waits for another request in the stream; returns whether one comes."""
        if self._idle[peer] >= _IDLE_OF_A_PEER or self._idle.total() >= _MOST_IDLE:
            return False
        with _counted_in(self._idle, peer):
            await _in_time(write_error(stream), MESSAGE_SECONDS, "waited for the client to read an answer")
            try:
                return not await asyncio.wait_for(stream.at_end(), _KEPT_SECONDS)
            except asyncio.TimeoutError:
                return False

    async def _whole(self, stream: RawStream, reserve: Callable[[int], None]) -> Request:
        """Reads a request whose tensors may be split into parts."""
        reader = self._reader(stream, reserve, self._memory.take)
        first, _ = await _next(reader, FIRST_MESSAGE_SECONDS)
        if first is None:
            raise Refused("a stream ended without a message")
        while (part := (await _next(reader, IDLE_SECONDS))[0]) is not None:
            if part.uid != first.uid:
                raise Refused("the messages of a stream name different blocks")
        return Request(first.uid, reader.payloads, first.metadata)

    async def _converse(
        self,
        handler: Callable[[AsyncIterator[Request]], AsyncGenerator[Answer, None]],
        stream: RawStream,
        reserve: Callable[[int], None],
    ) -> bool:
        """Answers the messages of a session; returns that its stream does not stay open."""
        wanted = asyncio.Semaphore(0)
        received: asyncio.Queue[tuple[Request, int] | None] = asyncio.Queue()

        async def requests() -> AsyncIterator[Request]:
            wanted.release()
            while (one := await received.get()) is not None:
                request, counted = one
                yield request
                reserve(-counted)  # the session is done with it
                wanted.release()

        async def answer() -> None:
            async with aclosing(handler(requests())) as responses:
                async for response in responses:
                    await _deliver(send_message, stream, response)

        async def read() -> NoReturn:
            limit = FIRST_MESSAGE_SECONDS
            while True:
                if await _in_time(stream.at_end(), limit, "waited for data"):
                    raise EOFError("the client is gone")
                await wanted.acquire()
                # not into shared memory: Petals keeps a message until the next one arrives, which may take long
                reader = self._reader(stream, reserve, lambda: None)
                message, counted = await _next(reader, MESSAGE_SECONDS)
                if message is None:
                    break
                received.put_nowait((Request(message.uid, reader.payloads, message.metadata), counted))
                limit = IDLE_SECONDS
            received.put_nowait(None)
            await _require_silence(stream)

        await _while_there(answer(), read())
        return False

    def _reader(
        self, stream: RawStream, reserve: Callable[[int], None], take: Callable[[], memoryview | None]
    ) -> TensorReader:
        from hivemind.proto import runtime_pb2

        def allow(size: int) -> None:
            if size > self._request_bytes:
                raise Refused(f"a message of {size} bytes is too large: at most {self._request_bytes} are read")
            reserve(counted_bytes(size))

        return TensorReader(stream, runtime_pb2.ExpertRequest, Arena(self._request_bytes, take), allow)

    @contextmanager
    def _admitted(self, peer: Any) -> Iterator[None]:
        """Counts a request within the context; refuses it if there are too many."""
        if self._peers[peer] >= REQUESTS_OF_A_PEER:
            raise Refused(f"busy: this client already has {REQUESTS_OF_A_PEER} requests here, the most at once")
        if self._peers.total() >= REQUESTS:
            raise Refused(f"busy: there are already {REQUESTS} requests, the most at once")
        with _counted_in(self._peers, peer):
            yield

    @contextmanager
    def _reserved(self, size: int) -> Iterator[Callable[[int], None]]:
        """Counts the bytes of a request within the context; yields a function that changes their number.

        Both raise `Refused` if there are too many.
        """
        reserved = 0

        def reserve(more: int) -> None:
            nonlocal reserved
            if reserved + more > self._request_bytes:
                raise Refused(f"a request is too large: at most {self._request_bytes} bytes are read")
            if more > self._bytes_left:
                raise Refused("busy: other requests take all memory that is reserved for requests")
            reserved += more
            self._bytes_left -= more

        reserve(size)
        try:
            yield reserve
        finally:
            self._bytes_left += reserved

    @contextmanager
    def _reported(self, name: str, peer: Any) -> Iterator[None]:
        """Logs the error of a request in one sentence, and shortens its text for the client as well."""
        try:
            yield
        except (ConnectionError, EOFError):  # the client is gone
            raise
        except Exception as error:
            if len(text := str(error)) > LONGEST_ERROR:
                error.args = (printable(text, LONGEST_ERROR),)
            text = printable(str(error)) or type(error).__name__
            logger.warning(f"{name.partition('.')[2]} of peer ...{str(peer)[-6:]}: {text}")
            raise


@contextmanager
def _counted_in(counter: Counter[Any], peer: Any) -> Iterator[None]:
    counter[peer] += 1
    try:
        yield
    finally:
        counter[peer] -= 1
        if not counter[peer]:
            del counter[peer]


def _keeps_stream(request: Request) -> bool:
    try:
        return read_metadata(request.metadata).get(KEEPS_STREAM) is True
    except Refused:
        return False


async def _next(reader: TensorReader, limit: float) -> tuple[Any, int]:
    """Reads a message without its tensors, None at the end of requests; also returns how many bytes were counted."""

    async def rest() -> Any:
        try:
            return await reader.rest()
        except PeerError:
            return None

    size = await _in_time(reader.begin(), limit, "waited for data")
    if size is None:
        raise EOFError("the client is gone")
    return await _in_time(rest(), _seconds_for(size), "waited for a complete message"), counted_bytes(size)


async def _deliver(
    send: Callable[[RawStream, Answer], Coroutine[Any, Any, None]], stream: RawStream, answer: Answer
) -> None:
    seconds = _seconds_for(sum(len(tensor.data) for tensor in answer.tensors))
    await _in_time(send(stream, answer), seconds, "waited for the client to read an answer")


async def _require_silence(stream: RawStream) -> NoReturn:
    """Waits until a client that has sent everything disconnects."""
    if await stream.at_end():
        raise EOFError("the client is gone")
    raise Refused("a stream that continues after its end")


async def _while_there(work: Coroutine[Any, Any, Any], client: Coroutine[Any, Any, NoReturn]) -> Any:
    """Returns the result of some work, unless reading from the client fails first."""
    tasks = [asyncio.create_task(work), asyncio.create_task(client)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0 if tasks[0].done() else 1].result()
    finally:
        await end_tasks(tasks)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks repeatedly until they end, because `asyncio.wait_for` may miss it up to Python 3.11."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_SECONDS)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it


def _seconds_for(size: int) -> float:
    return MESSAGE_SECONDS + size / SLOWEST


async def _in_time(coming: Coroutine[Any, Any, Any], seconds: float, what: str) -> Any:
    try:
        return await asyncio.wait_for(coming, seconds)
    except asyncio.TimeoutError:
        raise Refused(f"{what} for {seconds:.0f} s") from None
