"""What a peer's answers may cost: a real peer on this host, which answers anything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from conftest import TIMEOUT, SwarmClient

from dist_eval.petals.client.failures import WrongAnswer
from dist_eval.petals.client.kept_streams import KeptStreams
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.streams import SessionStream, call_stream, printable_errors

pytestmark = pytest.mark.processes

EXPECTED, PARTS = 4_000_000, 4
BOTH = pytest.mark.parametrize("in_session", [True, False], ids=["session", "call"])
NASTY = "\x1b[2J\x1b]0;owned\x07" + "x" * 1_000_000


async def write_message(writer: asyncio.StreamWriter, marker: bytes, content: bytes) -> None:
    writer.write(marker + len(content).to_bytes(8, "big") + content)
    await writer.drain()


async def endless_parts(writer: asyncio.StreamWriter) -> None:
    while True:
        await write_message(writer, b"\0", b"")


async def huge_parts(writer: asyncio.StreamWriter) -> None:
    while True:
        await write_message(writer, b"\0", tensors(1_000_000))


async def one_huge_part(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\0" + (2**62).to_bytes(8, "big"))
    while True:
        writer.write(bytes(1_000_000))
        await writer.drain()


async def a_long_error(writer: asyncio.StreamWriter) -> None:
    from hivemind.proto.p2pd_pb2 import RPCError

    await write_message(writer, b"\1", RPCError(message=NASTY).SerializeToString())


async def a_cut_answer(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\0" + (100).to_bytes(8, "big") + b"abc")
    await writer.drain()
    await asyncio.sleep(0.3)  # the daemon may withhold what has not been sent when the stream ends


async def what_is_expected(writer: asyncio.StreamWriter) -> None:
    for _ in range(PARTS):
        await write_message(writer, b"\0", tensors(EXPECTED // PARTS))


def tensors(size: int) -> bytes:
    from hivemind.proto import runtime_pb2

    return runtime_pb2.ExpertResponse(tensors=[runtime_pb2.Tensor(buffer=bytes(size))]).SerializeToString()


class Peers(NamedTuple):
    loop: asyncio.AbstractEventLoop
    answering: Any
    asking: Any

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, TIMEOUT))

    def ask(self, answer: Callable[[asyncio.StreamWriter], Any], in_session: bool) -> int:
        """Opens a stream to a peer that answers so; returns the bytes of its tensors."""
        from hivemind.proto import runtime_pb2

        async def handle(_info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            with contextlib.suppress(OSError):  # the client is gone
                await answer(writer)
            writer.close()

        async def call() -> int:
            name = f"{answer.__name__}, {in_session}"  # a name cannot be registered twice
            await self.answering.add_binary_stream_handler(name, handle)
            request, payloads = runtime_pb2.ExpertRequest(uid="base.0"), [Payload.of(torch.zeros(1))]
            if not in_session:
                found = await call_stream(
                    self.asking,
                    self.answering.peer_id,
                    name,
                    request,
                    payloads,
                    largest_answer=EXPECTED,
                    timeout=TIMEOUT,
                )
                return sum(len(payload.data) for payload in found.tensors)
            stream = await SessionStream.open(self.asking, self.answering.peer_id, name)
            stream.send(request, payloads)
            stream.end()
            left, size = [EXPECTED // PARTS] * PARTS, 0

            def largest() -> int:
                if not left:
                    raise WrongAnswer("longer than any answer")
                return left.pop()

            try:
                async for found in stream.answers(largest):
                    size += sum(len(payload.data) for payload in found.tensors)
            finally:
                stream.close()
            return size

        return self.run(call())


@pytest.fixture(scope="module")
def peers(swarm_client: SwarmClient) -> Iterator[Peers]:
    from hivemind.p2p import P2P

    loop = asyncio.new_event_loop()
    answering = loop.run_until_complete(P2P.create())
    addresses = loop.run_until_complete(answering.get_visible_maddrs())
    asking = loop.run_until_complete(P2P.create(initial_peers=addresses))
    yield Peers(loop, answering, asking)
    for peer in (asking, answering):
        loop.run_until_complete(peer.shutdown())
    loop.close()


@BOTH
@pytest.mark.parametrize("answer", [endless_parts, huge_parts, one_huge_part])
def test_a_stream_without_end_is_a_wrong_answer(answer: Any, in_session: bool, peers: Peers) -> None:
    with pytest.raises(WrongAnswer, match="longer than any answer"):
        peers.ask(answer, in_session)


@BOTH
def test_an_answer_of_the_expected_size_is_read(in_session: bool, peers: Peers) -> None:
    assert peers.ask(what_is_expected, in_session) == EXPECTED


@BOTH
def test_a_server_that_ends_within_an_answer_has_failed(in_session: bool, peers: Peers) -> None:
    with pytest.raises(EOFError):
        peers.ask(a_cut_answer, in_session)


def test_streams_that_servers_keep_open_are_used_again(peers: Peers) -> None:
    from hivemind.proto import runtime_pb2

    opened = list[int]()

    async def handle(_info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(0)
        with contextlib.suppress(asyncio.IncompleteReadError):  # the client is gone
            while opened[-1] < 2:  # answers two requests in each stream
                await reader.readuntil(b"\1" + bytes(8))
                opened[-1] += 1
                await write_message(writer, b"\0", tensors(10))
                await write_message(writer, b"\1", b"")
        writer.close()

    async def call() -> list[int]:
        await peers.answering.add_binary_stream_handler("keeps", handle)
        kept, request = KeptStreams(), runtime_pb2.ExpertRequest(uid="base.0")
        payloads, limits = [Payload.of(torch.zeros(1))], {"largest_answer": 10, "timeout": TIMEOUT}
        for _ in range(5):
            found = await call_stream(
                peers.asking, peers.answering.peer_id, "keeps", request, payloads, kept=kept, **limits
            )
            assert len(found.tensors[0].data) == 10
            await asyncio.sleep(0.2)  # until the end of a stream arrives
        kept.close()
        return list(opened)

    assert peers.run(call()) == [2, 2, 1]


def test_errors_of_servers_are_cut_and_cleaned(peers: Peers) -> None:
    from hivemind.p2p import P2PContext, P2PHandlerError
    from hivemind.proto import runtime_pb2

    async def fail(_request: runtime_pb2.ExpertUID, _context: P2PContext) -> runtime_pb2.ExpertInfo:
        raise RuntimeError(NASTY)

    async def call() -> None:
        await peers.answering.add_protobuf_handler("fail", fail, runtime_pb2.ExpertUID)
        with printable_errors():
            await peers.asking.call_protobuf_handler(
                peers.answering.peer_id, "fail", runtime_pb2.ExpertUID(uid=""), runtime_pb2.ExpertInfo
            )

    for failing in (
        lambda: peers.ask(a_long_error, True),
        lambda: peers.ask(a_long_error, False),
        lambda: peers.run(call()),
    ):
        with pytest.raises(P2PHandlerError) as caught:
            failing()
        assert "\\x1b[2J\\x1b]0;owned\\x07xxx" in str(caught.value)
        assert len(str(caught.value)) < 550
