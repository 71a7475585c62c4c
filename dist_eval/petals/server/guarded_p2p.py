"""Where requests arrive at a server: how many there may be at once, how large, and how long one may take to come.

hivemind bounds none of these for streams: a message is as long as it says, and one that never ends is waited for.
Whatever fails here is one sentence in the server's log, and the same one for the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import Any, NoReturn

from dist_eval.petals.client.raw_stream import RawStream
from dist_eval.petals.client.streams import Answer, send_answer
from dist_eval.petals.client.tensor_stream import MESSAGE, Arena, PeerError, TensorReader, write_content, write_error
from dist_eval.petals.server.metadata import Refused
from dist_eval.petals.server.request import Request
from dist_eval.petals.server.shared_memory import SharedMemory
from dist_eval.printable import printable

REQUESTS_OF_A_PEER, REQUESTS = 128, 512
"""Most requests and sessions at a handler at once, of one client and of all."""

FIRST_MESSAGE_SECONDS, IDLE_SECONDS = 30.0, 300.0
"""How long a stream may say nothing: before its first message, and later."""

MESSAGE_SECONDS, SLOWEST = 30.0, 1 << 16
"""How long a message or an answer may take once it has begun: this, and a second for so many bytes."""

REQUEST_SECONDS = 180.0
"""How long a request in several messages may take."""

_LEAST_MESSAGE_BYTES = 1 << 10  # counted for a shorter one, so that empty ones come to an end, too
_LONGEST_ERROR = 500
_CANCEL_SECONDS, _DISCARD_SECONDS = 0.1, 2.0

logger = logging.getLogger(__name__)


class GuardedP2P:
    """Takes the place of hivemind's `P2P` where a handler registers its methods.

    A method of one message gets a `Request`, if that is what comes, and returns an `Answer` or a message. One of a
    stream does, too: the stream is that of a single large request, and of its answer. Only a session has many: it gets
    an iterator of `Request`, and yields messages.

    Args:
        p2p: hivemind's.
        request_bytes: largest request, which may be a message of a session or a whole stream of another kind.
        total_bytes: of all requests that are being received or computed.
        memory: into which streams are read.
    """

    def __init__(self, p2p: Any, request_bytes: int, total_bytes: int, memory: SharedMemory) -> None:
        self._p2p, self._memory = p2p, memory
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
        from hivemind.proto import runtime_pb2

        async def unary(message: Any, context: Any) -> Any:
            peer = context.remote_id
            request = Request.of(message) if request_type is runtime_pb2.ExpertRequest else message
            size = request.nbytes if isinstance(request, Request) else message.ByteSize()
            with self._reported(name, peer), self._admitted(peer), self._held(size):
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
        """Answers a stream until it ends, fails or is given up."""
        with closing(await RawStream.take(reader, writer)) as stream:
            try:
                with self._reported(name, info.peer_id), self._admitted(info.peer_id), self._held(0) as hold:
                    converse = self._converse if name.endswith("rpc_inference") else self._answer_one
                    await converse(handler, stream, hold)
            except (ConnectionError, EOFError) as error:
                _forget_frames(error)
            except Exception as error:
                _forget_frames(error)
                with contextlib.suppress(Exception):  # nobody may be there any more
                    await asyncio.wait_for(write_error(stream, str(error) or type(error).__name__), MESSAGE_SECONDS)
                    # a client may not read why it was refused if the connection is cut before
                    await asyncio.wait_for(stream.discard(), _DISCARD_SECONDS)

    async def _answer_one(
        self, handler: Callable[[Request], Coroutine[Any, Any, Answer]], stream: RawStream, hold: Callable[[int], None]
    ) -> None:
        request = await _in_time(self._whole(stream, hold), REQUEST_SECONDS, "a request that comes too slowly")
        answer = await _while_there(handler(request), _require_silence(stream))
        seconds = _seconds_for(sum(len(tensor.data) for tensor in answer.tensors))
        await _in_time(send_answer(stream, answer), seconds, "an answer that was not taken")

    async def _whole(self, stream: RawStream, hold: Callable[[int], None]) -> Request:
        """Reads a request whose tensors may come in parts."""
        reader = self._reader(stream, hold, self._memory.take)
        first, _ = await _next(reader, FIRST_MESSAGE_SECONDS)
        if first is None:
            raise Refused("a stream ended without a message")
        while (part := (await _next(reader, IDLE_SECONDS))[0]) is not None:
            if part.uid != first.uid:
                raise Refused("the messages of a stream name different blocks")
        return Request(first.uid, reader.payloads, first.metadata)

    async def _converse(
        self,
        handler: Callable[[AsyncIterator[Request]], AsyncGenerator[Any, None]],
        stream: RawStream,
        hold: Callable[[int], None],
    ) -> None:
        wanted = asyncio.Semaphore(0)
        received: asyncio.Queue[tuple[Request, int] | None] = asyncio.Queue()

        async def requests() -> AsyncIterator[Request]:
            wanted.release()
            while (one := await received.get()) is not None:
                request, counted = one
                yield request
                hold(-counted)  # the session is done with it
                wanted.release()

        async def answer() -> None:
            async with aclosing(handler(requests())) as responses:
                async for response in responses:
                    content = response.SerializeToString()
                    sending = write_content(stream, MESSAGE, content)
                    await _in_time(sending, _seconds_for(len(content)), "an answer that was not taken")

        async def read() -> NoReturn:
            limit = FIRST_MESSAGE_SECONDS
            while True:
                if await _in_time(stream.at_end(), limit, "a stream that says nothing"):
                    raise EOFError("the client is gone")
                await wanted.acquire()
                # not into shared memory: Petals keeps a message until the next one comes, which may take long
                reader = self._reader(stream, hold, lambda: None)
                message, counted = await _next(reader, MESSAGE_SECONDS)
                if message is None:
                    break
                received.put_nowait((Request(message.uid, reader.payloads, message.metadata), counted))
                limit = IDLE_SECONDS
            received.put_nowait(None)
            await _require_silence(stream)

        await _while_there(answer(), read())

    def _reader(
        self, stream: RawStream, hold: Callable[[int], None], take: Callable[[], memoryview | None]
    ) -> TensorReader:
        from hivemind.proto import runtime_pb2

        def allow(size: int) -> None:
            if size > self._request_bytes:
                raise Refused(f"a message of {size} bytes is too large: at most {self._request_bytes} are read")
            hold(_counted(size))

        return TensorReader(stream, runtime_pb2.ExpertRequest, Arena(self._request_bytes, take), allow)

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
        except (ConnectionError, EOFError):  # the client is gone
            raise
        except Exception as error:
            if len(text := str(error)) > _LONGEST_ERROR:
                error.args = (printable(text, _LONGEST_ERROR),)
            text = printable(str(error)) or type(error).__name__
            logger.warning(f"{name.partition('.')[2]} of peer ...{str(peer)[-6:]}: {text}")
            raise


async def _next(reader: TensorReader, limit: float) -> tuple[Any, int]:
    """Reads a message without its tensors, None for the end of them; returns also how many bytes were counted."""

    async def rest() -> Any:
        try:
            return await reader.rest()
        except PeerError:
            return None

    size = await _in_time(reader.begin(), limit, "a stream that says nothing")
    if size is None:
        raise EOFError("the client is gone")
    return await _in_time(rest(), _seconds_for(size), "a message that comes too slowly"), _counted(size)


async def _require_silence(stream: RawStream) -> NoReturn:
    """Waits until a client goes, which has sent all that it had to."""
    if await stream.at_end():
        raise EOFError("the client is gone")
    raise Refused("a stream that goes on after its end")


async def _while_there(work: Coroutine[Any, Any, Any], client: Coroutine[Any, Any, NoReturn]) -> Any:
    """Returns what some work comes to, unless what reads from the client fails before."""
    tasks = [asyncio.create_task(work), asyncio.create_task(client)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0 if tasks[0].done() else 1].result()
    finally:
        await _end(tasks)


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks again until they have ended: `asyncio.wait_for` may miss it, up to Python 3.11."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=_CANCEL_SECONDS)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # which nobody needs to know of


def _forget_frames(error: BaseException | None) -> None:
    """Frees what the frames of an error refer to, which otherwise garbage collection does: tasks refer to errors."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _counted(size: int) -> int:
    return max(size, _LEAST_MESSAGE_BYTES)


def _seconds_for(size: int) -> float:
    return MESSAGE_SECONDS + size / SLOWEST


async def _in_time(coming: Coroutine[Any, Any, Any], seconds: float, what: str) -> Any:
    try:
        return await asyncio.wait_for(coming, seconds)
    except asyncio.TimeoutError:
        raise Refused(f"{what} for {seconds:.0f} s") from None
