"""Streams of messages that do not come, or come slowly; real servers are in `test_hostile_clients`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import torch
from hivemind.compression.serialization import serialize_torch_tensor
from hivemind.p2p import P2P
from hivemind.proto.runtime_pb2 import ExpertRequest, ExpertResponse
from hivemind.utils.streaming import split_for_streaming
from hivemind_messages import bytes_of, everything, messages_of, pieces_of, serialized, tensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.raw_stream import RawStream
from dist_eval.petals.client.streams import Answer
from dist_eval.petals.server import guarded_p2p
from dist_eval.petals.server.guarded_p2p import GuardedP2P
from dist_eval.petals.server.metadata import Refused
from dist_eval.petals.server.request import Request
from dist_eval.petals.server.shared_memory import SharedMemory

PEER = SimpleNamespace(peer_id="Qm-stranger")
LARGEST, TOTAL, SLOT = 1 << 14, 1 << 20, mmap.PAGESIZE
PART_BYTES = 1 << 10

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, bytes]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_MESSAGE_SECONDS", "IDLE_SECONDS", "MESSAGE_SECONDS", "_DISCARD_SECONDS", "_KEPT_SECONDS"):
        monkeypatch.setattr(guarded_p2p, name, 0.2)


def message(text: bytes, *sent: torch.Tensor) -> bytes:
    content = ExpertRequest(metadata=text, tensors=map(serialize_torch_tensor, sent)).SerializeToString()
    return b"\0" + len(content).to_bytes(8, "big") + content


END = b"\1" + bytes(8)


async def echo(request: Request) -> Answer:
    return Answer(request.tensors, request.metadata)


async def echo_each(requests: AsyncIterator[Request]) -> AsyncIterator[Answer]:
    async for request in requests:
        yield await echo(request)


def play(script: Script, *, handler: Any = echo, method: str = "rpc_forward_stream") -> bytes:
    """Runs the client's side of a stream; returns what it read."""

    async def both() -> bytes:
        ours, theirs = socket.socketpair()
        memory = SharedMemory(SLOT, 2 * SLOT, 1)
        memory.claim(0, 1)
        guard = GuardedP2P(None, LARGEST, TOTAL, memory)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        name = f"TransformerConnectionHandler.{method}"
        answering = asyncio.create_task(guard.answer(handler, name, PEER, reader, writer))
        client_reader, client_writer = await asyncio.open_unix_connection(sock=theirs)
        try:
            found = await asyncio.wait_for(script(client_reader, client_writer), 30.0)
        finally:
            client_writer.close()
        await asyncio.wait_for(answering, 30.0)
        assert guard._bytes_left == TOTAL and not guard._peers, "all of it is given back"
        taken = memory.take(), memory.take()
        assert None not in taken, "so are the slots"
        return found

    return asyncio.run(both())


def sending(*parts: bytes, pause: float = 0.0) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        reading = asyncio.create_task(everything(reader))
        for part in parts:
            if not reading.done():
                writer.write(part)
                await asyncio.sleep(pause)
        return await reading

    return script


def test_each_message_of_a_session_is_answered() -> None:
    found = play(sending(message(b"one"), message(b"two"), END), handler=echo_each, method="rpc_inference")
    assert 0 < found.index(b"one") < found.index(b"two")


def test_a_stream_stays_open_for_further_requests_only_if_asked_to() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        found = b""
        for number in (b"one", b"two", b"three"):
            asking = {"keeps_stream": number != b"three", "number": number}
            writer.write(message(msgpack.packb(asking), torch.ones(1)) + END)
            reading = everything(reader) if number == b"three" else reader.readuntil(END)
            answer = await asyncio.wait_for(reading, 10)
            assert number in answer
            found += answer
        return found

    assert play(script).count(END) == 2


def test_a_client_that_never_reads_the_end_of_an_answer_is_given_up() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 16))
            guard, stream = GuardedP2P(None, LARGEST, TOTAL, SharedMemory(SLOT, 2 * SLOT, 1)), RawStream(ours)
            with contextlib.closing(stream), pytest.raises(Refused, match="to read an answer"):
                await asyncio.wait_for(guard._continues(stream, "peer"), 10.0)
            assert not guard._idle

    asyncio.run(run())


def test_a_stream_that_stays_open_for_too_long_is_closed_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    asking = message(msgpack.packb({"keeps_stream": True}), torch.ones(1)) + END
    assert play(sending(asking)).endswith(END)
    assert not caplog.records


@given(
    st.lists(tensors(), min_size=1, max_size=4), st.binary(max_size=200), st.lists(st.integers(0, 1 << 16), max_size=9)
)
@SETTINGS
def test_tensors_of_a_stream_come_back_however_it_is_split(
    sent: list[torch.Tensor], metadata: bytes, cuts: list[int]
) -> None:
    data = bytes_of([*messages_of(sent, ExpertRequest, PART_BYTES, uid="m.0", metadata=metadata), P2P.END_OF_STREAM])
    answers = [ExpertResponse(tensors=[next(split_for_streaming(serialized(tensor), 1 << 20))]) for tensor in sent]
    answers[0].metadata = metadata
    assert play(sending(*pieces_of(data, cuts))) == bytes_of(answers)


SENT = torch.arange(60, dtype=torch.float32).reshape(1, 6, 10)
REQUEST = bytes_of([*messages_of([SENT, SENT], ExpertRequest, uid="m.0", metadata=b"0123456789"), P2P.END_OF_STREAM])


@given(st.integers(0, len(REQUEST) - 1))
@SETTINGS
def test_a_torn_request_is_not_computed(length: int) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(REQUEST[:length])
        writer.write_eof()
        return await everything(reader)

    assert play(script, handler=not_called) == b""


async def not_called(request: Request) -> Answer:
    raise AssertionError("a torn request")


@given(st.integers(0, len(REQUEST)), st.integers(0, 60), st.binary(max_size=30))
@SETTINGS
def test_whatever_is_changed_in_a_request_is_read_within_its_bounds_or_an_error(
    place: int, removed: int, inserted: bytes
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(REQUEST[:place] + inserted + REQUEST[place + removed :])
        writer.write_eof()
        return await everything(reader)

    async def handler(request: Request) -> Answer:
        assert sum(len(tensor.data) for tensor in request.tensors) <= len(REQUEST) + len(inserted)
        return await echo(request)

    play(script, handler=handler)


@pytest.mark.parametrize(
    ("parts", "pause", "words"),
    [
        ([], 0.0, b"waited for data for"),
        ([message(b"one")], 0.0, b"waited for data for"),
        ([message(b"one")[:5]], 0.0, b"waited for data for"),
        ([bytes([byte]) for byte in message(b"one" * 100)], 0.05, b"for 0 s"),
        ([b"\0" + (1 << 62).to_bytes(8, "big")], 0.0, b"is too large: at most 16384 are read"),
        ([b"\0" + (LARGEST + 1).to_bytes(8, "big")], 0.0, b"is too large: at most"),
        ([message(b"x" * 9000), message(b"x" * 9000)], 0.0, b"a request is too large"),
        ([message(b"one"), END, message(b"two")], 0.0, b"continues after its end"),
        ([message(b"")] * 20, 0.0, b"a request is too large"),
        ([b"\7" + bytes(8)], 0.0, b"not a message"),
        ([b"\0" + (4).to_bytes(8, "big") + b"\x0b\x0c" * 2], 0.0, b"a message that cannot be read"),
    ],
)  # fmt: skip
def test_what_is_no_stream_of_messages_ends(
    parts: list[bytes], pause: float, words: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert words in play(sending(*parts, pause=pause), handler=hold)
    [record] = caplog.records
    assert words.decode() in record.getMessage() and "ranger" in record.getMessage() and not record.exc_info


async def hold(request: Request) -> Answer:
    """Answers nothing."""
    await asyncio.Event().wait()
    raise AssertionError


def test_a_session_may_send_more_than_a_request() -> None:
    parts = [message(b"x" * 9000)] * 5
    found = play(sending(*parts, END), handler=echo_each, method="rpc_inference")
    assert found.count(b"x" * 9000) == 5


def test_memory_for_requests_is_bounded_in_all() -> None:
    guard = GuardedP2P(None, LARGEST, LARGEST + 10, SharedMemory(SLOT, 0, 1))
    with guard._reserved(LARGEST):
        for _ in range(2):
            with pytest.raises(Refused, match="busy: "), guard._reserved(20):
                pass
        with guard._reserved(10):
            pass


def test_an_answer_that_nobody_takes_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(request: Request) -> Answer:
        return Answer([Payload.of(torch.zeros(1 << 18))], b"")

    async def sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(message(b"one") + END)
        await asyncio.sleep(1.0)
        return b""

    monkeypatch.setattr(guarded_p2p, "SLOWEST", 1 << 30)
    with caplog.at_level(logging.WARNING):
        play(sleep, handler=talk)
    assert "waited for the client to read an answer for" in caplog.text


def test_a_client_that_goes_ends_what_it_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    ended = []

    async def compute(request: Request) -> Answer:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        raise AssertionError

    async def go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(message(b"one") + END)
        await asyncio.sleep(0.05)
        return b""

    play(go, handler=compute)
    assert ended and not caplog.records


def test_an_error_is_one_sentence_of_bounded_length(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Request) -> Answer:
        raise KeyError("a\nb" + "x" * 10**6)

    with caplog.at_level(logging.WARNING):
        found = play(sending(message(b"one"), END), handler=fail)
    assert b"bxxx" in found and len(found) < 1000
    [record] = caplog.records
    assert "\n" not in record.getMessage() and len(record.getMessage()) < 1000
