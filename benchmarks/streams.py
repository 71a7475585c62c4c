"""`python -m benchmarks.streams`: what a large request costs its client, by hivemind's stream code and by ours.

A peer on this host reads each request and answers with as many bytes; only the client's processor time is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import BenchmarkError, Program, Report
from dist_eval.process.memory import keep_freed_memory

QUESTION = "What does a large request cost its client, by hivemind's stream code and by ours?"
_METHOD, _TIMEOUT, _WARM_UP = "TransformerConnectionHandler.rpc_forward_stream", 60.0, 3
_OURS, _THEIRS = "dist_eval", "hivemind"


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures both ways."""
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=scratch_dir)
    from hivemind.utils.asyncio import switch_to_uvloop

    keep_freed_memory()
    hidden = torch.randn(1, options.tokens, options.hidden).to(torch.bfloat16)
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    peer = context.Process(target=_answer, args=(theirs, scratch_dir, hidden), daemon=True)
    peer.start()
    try:
        if not ours.poll(_TIMEOUT):
            raise BenchmarkError(f"The peer did not start within {_TIMEOUT:g} s.")
        loop = switch_to_uvloop()
        loop.run_until_complete(_measure(options, hidden, ours.recv()))
    finally:
        peer.terminate()
        peer.join()


async def _measure(options: argparse.Namespace, hidden: torch.Tensor, addresses: list[str]) -> None:
    from hivemind.p2p import P2P, PeerID

    report = Report("streams", QUESTION, unit="ms of processor time a request", options=options, more_is_better=False)
    p2p = await P2P.create(initial_peers=addresses)
    peer = PeerID.from_base58(addresses[0].rpartition("/")[2])
    group = f"{options.tokens} x {options.hidden}, bfloat16"
    try:
        for _ in range(options.rounds):
            for name, send in ((_THEIRS, _by_hivemind), (_OURS, _by_dist_eval)):
                taken = await _processor_time(send, p2p, peer, hidden, options.requests)
                report.add(group, name, 1000 * taken / options.requests)
        report.compare(f"{_OURS} / {_THEIRS}", (group, _OURS), (group, _THEIRS))
    finally:
        await p2p.shutdown()
    report.note(
        "Of the client's process, without the p2p daemons' and the peer's. Both send and receive the same bytes."
    )
    report.finish()


async def _processor_time(
    send: Callable[[Any, Any, torch.Tensor], Awaitable[torch.Tensor]],
    p2p: Any,
    peer: Any,
    hidden: torch.Tensor,
    requests: int,
) -> float:
    for _ in range(_WARM_UP):
        if not torch.equal(await send(p2p, peer, hidden), hidden):
            raise BenchmarkError("The answer is not what was sent.")
    before = time.process_time()
    for _ in range(requests):
        await send(p2p, peer, hidden)
    return time.process_time() - before


async def _by_hivemind(p2p: Any, peer: Any, hidden: torch.Tensor) -> torch.Tensor:
    from hivemind.compression.serialization import deserialize_tensor_stream
    from hivemind.proto import runtime_pb2
    from hivemind.utils.asyncio import iter_as_aiter

    requests = (runtime_pb2.ExpertRequest(uid="model.0", tensors=[part]) for part in _parts(hidden))
    answers = await p2p.iterate_protobuf_handler(peer, _METHOD, iter_as_aiter(requests), runtime_pb2.ExpertResponse)

    async def tensors() -> Any:
        async for answer in answers:
            yield answer.tensors

    (output,) = await deserialize_tensor_stream(tensors())
    return output


async def _by_dist_eval(p2p: Any, peer: Any, hidden: torch.Tensor) -> torch.Tensor:
    from hivemind.proto import runtime_pb2

    from dist_eval.petals.client.payload import Payload
    from dist_eval.petals.client.streams import call_stream

    request = runtime_pb2.ExpertRequest(uid="model.0")
    answer = await call_stream(
        p2p, peer, _METHOD, request, [Payload.of(hidden)], largest_answer=2 * hidden.nbytes, timeout=_TIMEOUT
    )
    return answer.tensors[0].tensor()


def _parts(hidden: torch.Tensor) -> Any:
    from hivemind.compression.serialization import serialize_torch_tensor
    from hivemind.p2p.p2p_daemon_bindings.control import DEFAULT_MAX_MSG_SIZE
    from hivemind.utils.streaming import split_for_streaming

    return split_for_streaming(serialize_torch_tensor(hidden), DEFAULT_MAX_MSG_SIZE)


def _answer(pipe: Connection, scratch_dir: Path, hidden: torch.Tensor) -> None:
    """Answers each request with the hidden states that it should have."""
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind
    from dist_eval.process.lifetime import die_with_parent

    die_with_parent()
    prepare_hivemind(sockets=scratch_dir)
    from hivemind.p2p import P2P
    from hivemind.proto import runtime_pb2

    messages = [runtime_pb2.ExpertResponse(tensors=[part]) for part in _parts(hidden)]

    async def answer(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readexactly(1) == P2P.MESSAGE_MARKER:
            await P2P.receive_raw_data(reader)
        for message in messages:
            await P2P.send_protobuf(message, writer)
        writer.close()

    async def serve() -> None:
        p2p = await P2P.create()
        await p2p.add_binary_stream_handler(_METHOD, answer)
        pipe.send(list(map(str, await p2p.get_visible_maddrs())))
        await asyncio.Event().wait()

    asyncio.run(serve())


PROGRAM = Program("streams", QUESTION, measure, quick={"hidden": 2048, "requests": 2})
PROGRAM.add("--hidden", 8192, "width of the hidden states")
PROGRAM.add("--tokens", 1024, "of a request")
PROGRAM.add("--requests", 20, "of a round, one after the other")

if __name__ == "__main__":
    PROGRAM.main()
