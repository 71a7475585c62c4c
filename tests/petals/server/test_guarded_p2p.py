"""Streams of messages that do not come, or come slowly; real servers are in `test_hostile_clients`."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from dist_eval.petals.server import guarded_p2p
from dist_eval.petals.server.guarded_p2p import GuardedP2P
from dist_eval.petals.server.metadata import Refused

PEER = SimpleNamespace(peer_id="Qm-stranger")
LARGEST, TOTAL = 1 << 14, 1 << 20

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, bytes]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_MESSAGE_SECONDS", "IDLE_SECONDS", "MESSAGE_SECONDS", "_DISCARD_SECONDS"):
        monkeypatch.setattr(guarded_p2p, name, 0.2)


def message(text: bytes) -> bytes:
    from hivemind.proto import runtime_pb2

    content = runtime_pb2.ExpertRequest(metadata=text).SerializeToString()
    return b"\0" + len(content).to_bytes(8, "big") + content


END = b"\1" + bytes(8)


async def echo(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    from hivemind.proto import runtime_pb2

    async for request in requests:
        yield runtime_pb2.ExpertResponse(metadata=request.metadata)


def play(script: Script, *, handler: Any = echo, method: str = "rpc_forward_stream") -> bytes:
    """Runs the client's side of a stream; returns what it read."""
    from hivemind.proto import runtime_pb2

    async def both() -> bytes:
        ours, theirs = socket.socketpair()
        guard = GuardedP2P(None, LARGEST, TOTAL)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        name = f"TransformerConnectionHandler.{method}"
        answering = asyncio.create_task(guard.answer(handler, runtime_pb2.ExpertRequest, name, PEER, reader, writer))
        client_reader, client_writer = await asyncio.open_unix_connection(sock=theirs)
        try:
            found = await asyncio.wait_for(script(client_reader, client_writer), 30.0)
        finally:
            client_writer.close()
        await asyncio.wait_for(answering, 30.0)
        assert guard._bytes_left == TOTAL and not guard._peers, "all of it is given back"
        return found

    return asyncio.run(both())


def sending(*parts: bytes, pause: float = 0.0) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        reading = asyncio.create_task(reader.read())
        for part in parts:
            if not reading.done():
                writer.write(part)
                await asyncio.sleep(pause)
        return await reading

    return script


def test_messages_are_answered_until_the_end() -> None:
    found = play(sending(message(b"one"), message(b"two"), END))
    assert found.index(b"one") < found.index(b"two")
    assert play(sending(message(b"one"), message(b"two"), END), method="rpc_inference").count(b"\0") == found.count(
        b"\0"
    )


@pytest.mark.parametrize(
    ("parts", "pause", "words"),
    [
        ([], 0.0, b"a stream that says nothing for"),
        ([message(b"one")], 0.0, b"a stream that says nothing for"),
        ([message(b"one")[:5]], 0.0, b"a message that does not come for"),
        ([bytes([byte]) for byte in message(b"one" * 100)], 0.05, b"for 0 s"),
        ([b"\0" + (1 << 62).to_bytes(8, "big")], 0.0, b"is too large: at most 16384 are read"),
        ([b"\0" + (LARGEST + 1).to_bytes(8, "big")], 0.0, b"is too large: at most"),
        ([message(b"x" * 9000), message(b"x" * 9000)], 0.0, b"a request is too large"),
        ([message(b"")] * 20, 0.0, b"a request is too large"),
        ([b"\7" + bytes(8)], 0.0, b"not one of messages"),
        ([b"\0" + (4).to_bytes(8, "big") + b"\xff" * 4], 0.0, b"a message that cannot be read"),
    ],
)  # fmt: skip
def test_what_is_no_stream_of_messages_ends(
    parts: list[bytes], pause: float, words: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert words in play(sending(*parts, pause=pause), handler=hold)
    [record] = caplog.records
    assert words.decode() in record.getMessage() and "ranger" in record.getMessage() and not record.exc_info


async def hold(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Reads, and answers nothing."""
    async for _ in requests:
        continue
    await asyncio.Event().wait()
    yield


def test_a_session_may_send_more_than_a_request() -> None:
    parts = [message(b"x" * 9000)] * 5
    assert play(sending(*parts, END), method="rpc_inference").count(b"x" * 9000) == 5


def test_memory_for_requests_is_bounded_in_all() -> None:
    guard = GuardedP2P(None, LARGEST, LARGEST + 10)
    with guard._held(LARGEST):
        for _ in range(2):
            with pytest.raises(Refused, match="busy: "), guard._held(20):
                pass
        with guard._held(10):
            pass


def test_an_answer_that_nobody_takes_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hivemind.proto import runtime_pb2

    async def talk(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        while True:
            yield runtime_pb2.ExpertResponse(metadata=bytes(1 << 16))

    async def sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(message(b"one"))
        await asyncio.sleep(4.0)
        return b""

    monkeypatch.setattr(guarded_p2p, "IDLE_SECONDS", 30.0)
    with caplog.at_level(logging.WARNING):
        play(sleep, handler=talk)
    assert "an answer that was not taken for" in caplog.text


def test_a_client_that_goes_ends_what_it_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    ended = []

    async def compute(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            ended.append(True)

    async def go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(message(b"one") + END)
        await asyncio.sleep(0.05)
        return b""

    play(go, handler=compute)
    assert ended and not caplog.records


def test_an_error_is_one_sentence_of_bounded_length(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        raise KeyError("a\nb" + "x" * 10**6)
        yield

    with caplog.at_level(logging.WARNING):
        found = play(sending(message(b"one"), END), handler=fail)
    assert b"bxxx" in found and len(found) < 1000
    [record] = caplog.records
    assert "\n" not in record.getMessage() and len(record.getMessage()) < 1000
