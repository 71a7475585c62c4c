"""Streams of tensors: hivemind's bytes to the last one, and whatever strangers send instead of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import uvloop
from hivemind.compression.serialization import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.p2p import P2P, P2PHandlerError
from hivemind.proto import runtime_pb2
from hivemind.proto.p2pd_pb2 import RPCError
from hivemind.utils.streaming import split_for_streaming
from hivemind_messages import PART_BYTES, bytes_of, messages_of, pieces_of, serialized, tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.petals.client.outputs import read_answer
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.raw_stream import RawStream
from dist_eval.petals.client.streams import Answer, receive_answer, send_answer, send_request
from dist_eval.petals.client.tensor_stream import varint

LARGEST = 1 << 20
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]  # asyncio's own is that of tests, uvloop's that of programs


def run(coroutine: Any, new_loop: Callable[[], Any] = asyncio.new_event_loop) -> Any:
    loop = new_loop()
    try:
        return loop.run_until_complete(asyncio.wait_for(coroutine, 30))
    finally:
        loop.close()


async def receive(pieces: Iterable[bytes], largest: int = LARGEST, timeout: float = 20.0) -> Answer:
    """Reads an answer that comes in pieces."""
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        one.setblocking(False)
    stream = RawStream(ours)

    async def send() -> None:
        with contextlib.suppress(OSError):  # nobody reads any more
            for piece in pieces:
                await asyncio.get_running_loop().sock_sendall(theirs, piece)
                await asyncio.sleep(0)
            theirs.shutdown(socket.SHUT_WR)

    sending = asyncio.create_task(send())
    try:
        return (await receive_answer(stream, largest, timeout))[0]
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        theirs.close()
        stream.close()


@given(
    st.lists(tensors(), min_size=1, max_size=4), st.text(max_size=20), st.binary(max_size=200), st.sampled_from(LOOPS)
)
@settings(deadline=None)
def test_requests_and_answers_are_the_bytes_of_hivemind(
    sent: list[torch.Tensor], uid: str, metadata: bytes, new_loop: Callable[[], Any]
) -> None:
    async def written(send: Callable[[RawStream], Any]) -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            stream = RawStream(ours)
            await send(stream)
            stream.close()
            return b"".join(iter(lambda: theirs.recv(1 << 16), b""))

    payloads = [Payload.of(tensor) for tensor in sent]
    request = runtime_pb2.ExpertRequest(uid=uid, metadata=metadata)
    found = run(written(lambda stream: send_request(stream, request, payloads, PART_BYTES)), new_loop)
    expected = messages_of(sent, runtime_pb2.ExpertRequest, uid=uid, metadata=metadata)
    assert found == bytes_of([*expected, P2P.END_OF_STREAM])
    found = run(written(lambda stream: send_answer(stream, Answer(payloads, metadata), PART_BYTES)), new_loop)
    first, *others = messages_of(sent, runtime_pb2.ExpertResponse)
    first.metadata = metadata
    assert found == bytes_of([first, *others])


@given(
    st.lists(tensors(), min_size=1, max_size=4),
    st.binary(max_size=200),
    st.lists(st.integers(0, 1 << 16), max_size=20),
    st.sampled_from(LOOPS),
)
@settings(deadline=None)
def test_any_split_of_an_answer_gives_the_same_tensors(
    sent: list[torch.Tensor], metadata: bytes, cuts: list[int], new_loop: Callable[[], Any]
) -> None:
    data = bytes_of(messages_of(sent, runtime_pb2.ExpertResponse, metadata=metadata))
    answer = run(receive(pieces_of(data, cuts)), new_loop)
    assert answer.metadata == metadata
    for read, tensor in zip(answer.tensors, sent, strict=True):
        assert read.tensor().dtype == tensor.dtype
        assert torch.equal(read.tensor(), tensor)
        assert read.message() == serialized(tensor)


def test_an_answer_is_read_into_its_place_and_not_copied() -> None:
    sent = torch.arange(1 << 10, dtype=torch.float32)
    (payload,) = run(receive([bytes_of(messages_of([sent], runtime_pb2.ExpertResponse))])).tensors
    read = payload.tensor()
    read[0] = 5.0
    assert payload.tensor()[0] == 5.0
    assert Payload.of(sent).tensor().data_ptr() == sent.data_ptr()


@given(arrays(np.float32, (7, 31), elements=st.floats(-100, 100, width=32)))
@settings(deadline=None)
def test_what_is_compressed_is_read_by_hivemind(values: np.ndarray) -> None:
    sent = [
        serialize_torch_tensor(torch.from_numpy(values), runtime_pb2.CompressionType.FLOAT16),
        serialized(torch.arange(50)),
    ]
    parts = (part for one in sent for part in split_for_streaming(one, PART_BYTES))
    answer = run(receive([bytes_of(runtime_pb2.ExpertResponse(tensors=[part]) for part in parts)]))
    assert [payload.message() for payload in answer.tensors] == sent
    for payload, message in zip(answer.tensors, sent, strict=True):
        assert torch.equal(payload.tensor(), deserialize_torch_tensor(message))


def outcome(pieces: Iterable[bytes], expected: torch.Tensor) -> torch.Tensor | None:
    """Reads an answer of a tensor as a client does; None if it fails in a way that says so."""
    try:
        answer = run(receive(pieces))
        (read,) = read_answer(answer.tensors, [expected.shape])
        return read
    except (WrongAnswer, EOFError, ConnectionResetError, P2PHandlerError) as error:
        assert str(error)
        return None


SENT = torch.arange(60, dtype=torch.float32).reshape(1, 6, 10)
ANSWER = bytes_of(messages_of([SENT], runtime_pb2.ExpertResponse, metadata=b"0123456789"))


@given(st.integers(0, len(ANSWER) - 1))
@settings(deadline=None)
def test_a_torn_answer_is_an_error(length: int) -> None:
    assert outcome([ANSWER[:length]], SENT) is None


@given(
    st.integers(0, len(ANSWER)), st.integers(0, 60), st.binary(max_size=30), st.lists(st.integers(0, 600), max_size=3)
)
@settings(deadline=None, max_examples=300)
def test_whatever_is_changed_in_an_answer_is_a_tensor_or_an_error(
    place: int, removed: int, inserted: bytes, cuts: list[int]
) -> None:
    read = outcome(pieces_of(ANSWER[:place] + inserted + ANSWER[place + removed :], cuts), SENT)
    assert read is None or read.shape == SENT.shape


@given(st.binary(max_size=400))
@settings(deadline=None)
def test_noise_is_an_error(noise: bytes) -> None:
    assert outcome([noise], SENT) is None
    assert outcome([b"\0" + len(noise).to_bytes(8, "big") + noise], SENT) is None


def message(content: bytes, size: int | None = None, marker: bytes = b"\0") -> bytes:
    return marker + (len(content) if size is None else size).to_bytes(8, "big") + content


def tensor_field(content: bytes, size: int | None = None) -> bytes:
    return b"\x12" + varint(len(content) if size is None else size) + content


HEAD = runtime_pb2.Tensor(size=[1 << 31, 1 << 31], dtype="float32").SerializeToString()
MANY_SIZES = runtime_pb2.Tensor(size=[1] * 200_000, dtype="float32").SerializeToString()


class Hostile(NamedTuple):
    name: str
    first: bytes
    repeated: bytes  # for ever
    said: str


@pytest.mark.parametrize(
    "hostile",
    [
        Hostile("empty messages", b"", message(b""), "longer than any answer"),
        Hostile("full messages", b"", message(tensor_field(b"\x0a\x90\x4e" + bytes(10_000))), "longer than any answer"),
        Hostile("one message", message(b"", 1 << 62), bytes(10_000), "longer than any answer"),
        Hostile("one error", message(b"", 1 << 62, b"\1"), bytes(10_000), "longer than any answer"),
        Hostile("a long error", message(b"", LARGEST + 1, b"\1"), b"x" * 1000, "not a message"),
        Hostile("a tensor longer than its message", message(tensor_field(b"", 200)), bytes(1000), "longer than its"),
        Hostile(
            "bytes longer than their tensor", message(tensor_field(b"\x0a\x7f" + b"abc")), bytes(99), "longer than"
        ),
        Hostile("a huge head", message(tensor_field(HEAD)), message(b""), "longer than any answer"),
        Hostile("many sizes", message(tensor_field(MANY_SIZES)), b"", "too much beside"),
        Hostile(
            "many dimensions",
            message(tensor_field(runtime_pb2.Tensor(size=[127] * 60_000, dtype="float32").SerializeToString())),
            b"",
            "too many dimensions",
        ),
        Hostile("many tensors", message(tensor_field(b"") * 1000), b"", "too many tensors"),
        Hostile("many tensors in messages", b"", message(tensor_field(b"\x22\x01x")), "too many tensors"),
        Hostile("many fields", message(b"\x28\x01" * 1000), b"", "too much beside"),
        Hostile("bytes twice", message(tensor_field(b"\x0a\x01a" * 2)), b"", "two buffers"),
        Hostile("an endless number", message(b"\x12" + b"\xff" * 50), b"", "cannot be read"),
        Hostile("a group", message(b"\x0b\x0c"), b"", "cannot be read"),
        Hostile("a dtype that is not text", message(tensor_field(b"\x22\x01\xff")), b"", "cannot be read"),
        Hostile("another marker", b"\2", bytes(100), "not a message"),
    ],
    ids=lambda hostile: hostile.name,
)
def test_a_hostile_stream_is_a_wrong_answer_within_bounds_of_memory(hostile: Hostile) -> None:
    async def read() -> int:
        tracemalloc.start()
        try:
            pieces = itertools.chain([hostile.first], itertools.repeat(hostile.repeated or b"\0"))
            with pytest.raises(WrongAnswer, match=hostile.said):
                await receive(pieces)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert run(read()) < 6 * LARGEST


def test_an_error_is_that_of_the_server() -> None:
    begun = bytes_of(messages_of([SENT], runtime_pb2.ExpertResponse)[:2])
    with pytest.raises(P2PHandlerError, match="no room"):
        run(receive([begun + bytes_of([RPCError(message="no room")])]))


@pytest.mark.parametrize("begun", [b"", ANSWER[:5], ANSWER[:70], ANSWER])
def test_a_stream_that_stalls_is_given_up(begun: bytes) -> None:
    async def read() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        stream = RawStream(ours)
        theirs.sendall(begun)
        with contextlib.closing(theirs), contextlib.closing(stream):
            await receive_answer(stream, LARGEST, 0.05)

    with pytest.raises((asyncio.TimeoutError, TimeoutError)):
        run(read())


def test_a_stream_that_trickles_is_given_up() -> None:
    async def trickle(connection: socket.socket) -> None:
        while True:
            connection.sendall(message(b""))
            await asyncio.sleep(0.02)

    async def read() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        stream, sending = RawStream(ours), asyncio.create_task(trickle(theirs))
        with contextlib.closing(theirs), contextlib.closing(stream):
            try:
                await receive_answer(stream, LARGEST, 0.1)
            finally:
                sending.cancel()
                await asyncio.wait([sending])

    with pytest.raises((asyncio.TimeoutError, TimeoutError)):
        run(read())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_what_asyncio_has_read_already_is_not_lost(new_loop: Callable[[], Any]) -> None:
    async def read() -> Answer:
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            half = len(ANSWER) // 2
            theirs.send(ANSWER[:half])
            assert await reader.readexactly(1) == ANSWER[:1]
            stream = await RawStream.take(reader, writer)
            await stream.write(b"taken")
            assert await asyncio.get_running_loop().sock_recv(theirs, 5) == b"taken"
            theirs.sendall(ANSWER[half:])
            theirs.close()
            stream._ahead = memoryview(ANSWER[:1] + bytes(stream._ahead))
            try:
                return (await receive_answer(stream, LARGEST, 5.0))[0]
            finally:
                stream.close()

    (read_tensor,) = read_answer(run(read(), new_loop).tensors, [SENT.shape])
    assert torch.equal(read_tensor, SENT)
