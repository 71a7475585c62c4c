"""Strangers who send a real server whatever they like: it lives, and its other clients notice nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SwarmClient, wait_for
from hivemind_messages import everything
from hostile_client import Stranger, memory_of, nested, nested_tuples, outcome, packed, request
from tiny_models import HIDDEN, LAYERS

from dist_eval.petals.server.private import PrivateSwarm

PREFIX, ROWS, LENGTH = "guarded", 2, 5
UID = " ".join(f"{PREFIX}.{block}" for block in range(LAYERS))
NONE, NO_ORDER, END = torch.empty(0), torch.empty(0, dtype=torch.int64), "end"
NAN, MIB = float("nan"), 1 << 20


def hidden(rows: int = ROWS, length: int = LENGTH, width: int = HIDDEN) -> torch.Tensor:
    return torch.randn(rows, length, width, generator=torch.Generator().manual_seed(1))


def hop(start: int, end: int) -> dict[str, Any]:
    return {"peer": f"Qm{'a' * 44}", "start": start, "end": end, "patience": 1.0}


def order(*rows: int) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def forward(*tensors: Any, uid: str = UID, **metadata: Any) -> Any:
    return request(uid, *(tensors or (hidden(), NONE)), metadata=metadata)


def opening(inputs: Any = None, prompts: Any = NONE, places: Any = NO_ORDER, uid: str = UID, **metadata: Any) -> Any:
    inputs = hidden() if inputs is None else inputs
    return request(uid, inputs, prompts, places, metadata={"max_length": 32, "alloc_timeout": 1.0, **metadata})


def step(inputs: Any = None, places: Any = NO_ORDER, **metadata: Any) -> Any:
    return request(UID, hidden(length=1) if inputs is None else inputs, NONE, places, metadata=metadata)


def chained(name: str = "opening", ids: torch.Tensor | None = None, **metadata: Any) -> Any:
    """A step of a session that goes by chain, with token ids."""
    ids = order(7, 3)[:, None] if ids is None else ids
    fields = {"chain": [], "ids": True, **({"max_length": 32} if name == "opening" else {}), **metadata}
    return request(UID, ids, NONE, NO_ORDER, NONE, metadata=fields)


def raw(metadata: Any, *tensors: Any) -> Any:
    return request(UID, *(tensors or (hidden(), NONE)), metadata=metadata)


FORWARDS: dict[str, tuple[Callable[[], Any], str]] = {
    "more numbers than bytes": (lambda: forward(packed(hidden(), size=(2, 500, HIDDEN)), NONE), "have 2560 bytes"),
    "fewer numbers than bytes": (lambda: forward(packed(hidden(), size=(1, 1, HIDDEN)), NONE), "have 2560 bytes"),
    "sizes that overflow": (lambda: forward(packed(hidden(), size=[2**32 - 1] * 3), NONE), "have 2560 bytes"),
    "1000 dimensions": (lambda: forward(packed(torch.ones(1), size=[1] * 1000), NONE), "1000 dimensions"),
    "a million rows": (lambda: forward(packed(NONE, size=(10**6, 0, HIDDEN)), NONE), "1000000 rows of 0 tokens"),
    "too many tokens": (lambda: forward(torch.zeros(1, 2049, HIDDEN), NONE), r"max_batch_size \(2048\)"),
    "another width": (lambda: forward(hidden(width=32), NONE), r"\[2, 5, 32\] instead of"),
    "four dimensions": (lambda: forward(hidden()[None], NONE), "instead of"),
    "objects": (lambda: forward(packed(hidden(), dtype="object"), NONE), "is 'object' instead"),
    "complex numbers": (
        lambda: forward(torch.zeros(2, 5, HIDDEN, dtype=torch.complex64), NONE),
        "is 'complex64' instead",
    ),
    "another compression": (lambda: forward(packed(hidden(), compression=5), NONE), "have a compression"),
    "an unknown compression": (lambda: forward(packed(hidden(), compression=99), NONE), "have a compression"),
    "NaN": (lambda: forward(hidden() * NAN, NONE), "not finite"),
    "infinite once cast": (lambda: forward(torch.full((1, 1, HIDDEN), 1e300, dtype=torch.float64), NONE), "not finite"),
    "prompts of one dimension": (lambda: forward(hidden(), torch.ones(7)), "prompts have size"),
    "prompts of fewer blocks": (lambda: forward(hidden(), torch.ones(3, 1, 2, HIDDEN)), "prompts have size"),
    "prompts that are longer": (lambda: forward(hidden(), torch.ones(4, 1, 9, HIDDEN)), "prompts have size"),
    "prompts that are broadcast": (lambda: forward(hidden(), torch.ones(4, 1, 2, 1)), "prompts have size"),
    "prompts of other rows": (lambda: forward(hidden(), torch.ones(4, 5, 2, HIDDEN)), "prompts have size"),
    "prompts of NaN": (lambda: forward(hidden(), torch.ones(4, 1, 2, HIDDEN) * NAN), "not finite"),
    "one tensor": (lambda: forward(hidden()), "needs 2 tensors"),
    "many tensors": (lambda: forward(*[packed(NONE)] * 10_000), "at most 4 tensors"),
    "another model": (lambda: forward(uid="other.0"), "not 'other.0'"),
    "a block twice": (lambda: forward(uid=f"{PREFIX}.0 {PREFIX}.0"), "consecutive blocks"),
    "blocks in descending order": (lambda: forward(uid=f"{PREFIX}.1 {PREFIX}.0"), "consecutive blocks"),
    "blocks with a gap": (lambda: forward(uid=f"{PREFIX}.0 {PREFIX}.2"), "consecutive blocks"),
    "no block": (lambda: forward(uid=""), "consecutive blocks"),
    "a block 100,000 times": (lambda: forward(uid=" ".join([f"{PREFIX}.0"] * 10**5)), "consecutive blocks"),
    "an adapter that is a path": (lambda: forward(active_adapter="../../etc/passwd"), "passwd' not found"),
    "an adapter that is a list": (lambda: forward(active_adapter=["a"]), "active_adapter cannot be"),
    "a long adapter": (lambda: forward(active_adapter="a" * 60_000), "aaa.* not found"),
    "metadata that are a list": (lambda: raw([1]), "must be a map"),
    "metadata that are rubbish": (lambda: raw(b"\xc1rubbish"), "cannot be read"),
    "metadata 10,000 deep": (lambda: raw(nested(10_000)), "cannot be read"),
    "metadata 9 deep": (lambda: raw({"a": [[[[[[[[0]]]]]]]]}), "nested more than 8 deep"),
    "tuples 3000 deep": (lambda: raw(nested_tuples(3000)), "nested more than 8 deep"),
    "metadata of unknown types": (lambda: raw(b"\x81\xa1x\xd4\x51\x00"), "metadata of type 81"),
    "metadata of 3 MB": (lambda: raw({"x": b"0" * 3_000_000}), "at most 65536 are read"),
    "points that are NaN": (lambda: forward(points=NAN), "points cannot be nan"),
    "arguments that are nested": (lambda: forward(args_structure=[[[[0]]]]), "args_structure"),
    "arguments that are not there": (lambda: forward(args_structure=((b"__T9", b"__T1"), {})), "args_structure"),
    "arguments that are numbers": (lambda: forward(args_structure=((1, 2), {})), "args_structure"),
    "no argument": (lambda: forward(args_structure=((None, b"__T1"), {})), "needs the hidden states"),
    "an answer in another compression": (lambda: forward(output_compression=(5,)), "output_compression cannot"),
}
"""What is refused of forwards, sent whole and in a stream, and in which words."""

BACKWARDS: dict[str, tuple[Callable[[], Any], str]] = {
    "a gradient of other rows": (lambda: forward(hidden(), hidden(3), NONE), "the gradient has size"),
    "a gradient that is broadcast": (lambda: forward(hidden(), hidden(1, 1), NONE), "the gradient has size"),
    "a gradient of NaN": (lambda: forward(hidden(), hidden() * NAN, NONE), "not finite"),
    "no gradient": (lambda: forward(hidden()), "needs 3 tensors"),
}

SESSIONS: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "an order out of range": (lambda: [opening(), step(places=order(0, 7))], "rows 0 to 7 of a session of 2"),
    "an order below 0": (lambda: [opening(), step(places=order(0, -9))], "rows -9 to 0 of a session of 2"),
    "an order of other rows": (lambda: [opening(), step(places=order(0, 1, 0))], r"\[3\] instead of \[2\]"),
    "an order of two dimensions": (lambda: [opening(), step(places=order(0, 1)[None])], r"\[1, 2\] instead of \[2\]"),
    "an order that is no whole number": (lambda: [opening(), step(places=torch.zeros(2))], "is 'float32' instead"),
    "fewer rows": (lambda: [opening(hidden(4)), step(hidden(1, 1))], "1 rows in a session of 4"),
    "more rows": (lambda: [opening(), step(hidden(4, 1))], "4 rows in a session of 2"),
    "a million rows": (lambda: [opening(packed(NONE, size=(10**6, 0, HIDDEN)), max_length=0)], "max_batch_size"),
    "a length that nothing has": (lambda: [opening(max_length=10**12)], "Cannot allocate KV cache for 1000000000000"),
    "a length below 0": (lambda: [opening(max_length=-1)], "Cannot allocate KV cache for -1"),
    "a length that is a word": (lambda: [opening(max_length="many")], "max_length cannot be 'many'"),
    "a length that is true": (lambda: [opening(max_length=True)], "max_length cannot be True"),
    "no length": (lambda: [forward(hidden(), NONE, NO_ORDER)], "max_length must be"),
    "more tokens than its length": (lambda: [opening(max_length=3)], "5 tokens in a session for 3"),
    "a start ahead": (lambda: [opening(), step(start_from_position=900)], "cannot start from position 900"),
    "a start below 0": (lambda: [opening(), step(start_from_position=-1)], "cannot start from position -1"),
    "a start that is NaN": (lambda: [opening(), step(start_from_position=NAN)], "start_from_position cannot be nan"),
    "a start that is true": (lambda: [opening(), step(start_from_position=True)], "start_from_position cannot be"),
    "another width": (lambda: [opening(hidden(width=32))], "instead of"),
    "NaN": (lambda: [opening(hidden() * NAN)], "not finite"),
    "prompts that are longer": (lambda: [opening(prompts=torch.ones(4, 1, 9, HIDDEN))], "prompts have size"),
    "a block twice": (lambda: [opening(uid=f"{PREFIX}.0 {PREFIX}.0")], "consecutive blocks"),
    "no tensors": (lambda: [raw({"max_length": 3}, packed(NONE))], "needs 3 tensors"),
    "metadata that are a list": (lambda: [raw([1])], "must be a map"),
    "a step's metadata that are a list": (lambda: [opening(), raw([1])], "must be a map"),
    "metadata of 100 MB": (lambda: [opening(x=b"0" * 10**8)], "is too large"),
    "a time-out that is a word": (lambda: [opening(alloc_timeout="long")], "alloc_timeout cannot be 'long'"),
    "a time-out that is NaN": (lambda: [opening(alloc_timeout=NAN)], "alloc_timeout cannot be nan"),
    "a session without a name": (lambda: [opening(session_id=["x"])], "session_id cannot be"),
    "a step without a name": (lambda: [opening(step_id=["x"])], "step_id cannot be"),
    "following servers that are numbers": (lambda: [opening(next_servers=[1])], "next_servers cannot be"),
    "a chain after its last block": (lambda: [opening(chain=[hop(9, 10)])], "continues at block 9, not 4"),
    "another chain later": (lambda: [opening(chain=[]), step(chain=[hop(4, 5)])], "another route than the first one"),
    "no chain later": (lambda: [opening(chain=[]), step()], "another route than the first one"),
    "a chain only later": (lambda: [opening(), step(chain=[])], "in a session that is not"),
    "a chain into which others push": (lambda: [opening(chain=[], session_id="x")], "cannot have a session_id"),
    "prompts later": (
        lambda: [chained(), request(UID, hidden(), torch.ones(4, 1, 2, HIDDEN), NO_ORDER, metadata={"chain": []})],
        "prompts after the first step",
    ),
    "outputs that there are not": (lambda: [opening(chain=[], rows=[10])], "positions up to 10 are requested"),
    "token ids that there are not": (lambda: [chained(), chained("step", order(1, 10**6)[:, None])], "does not have"),
    "token ids that are numbers": (lambda: [chained(ids=torch.ones(2, 1))], "dtype of the token ids"),
    "token ids of other rows": (lambda: [chained(), chained("step", order(1, 2, 3)[:, None])], "3 rows in a session"),
    "a server with 10**9 blocks": (lambda: [opening(next_servers=[("Qm", "s", 0, 10**9)])], "next_servers cannot be"),
}

STREAMS: dict[str, tuple[Callable[[], list[Any]], str]] = {
    "other blocks in the middle": (lambda: [raw({}, hidden()), request("other", NONE)], "name different blocks"),
    "a part before the first": (lambda: [raw({}, packed(hidden(), dtype=""))], "needs 2 tensors"),
    "parts that never end": (
        lambda: [raw({}, packed(hidden()))] + [raw({}, packed(NONE, buffer=b"0" * MIB, dtype="", size=()))] * 20,
        "too large: at most",
    ),
    "empty messages that never end": (lambda: [request(UID)] * 20_000, "too large: at most"),
    "no message": (list, "ended without a message"),
}


@pytest.fixture(scope="module")
def guarded_swarm(tiny_models: dict[str, Path], swarm_client: SwarmClient) -> Iterator[PrivateSwarm]:
    """A server as people start it: one that tests fork says nothing in its log."""
    with PrivateSwarm(
        str(tiny_models["llama"]), num_blocks=LAYERS, dht_prefix=PREFIX, spans=[(0, LAYERS)], threads=1
    ) as swarm:
        assert wait_for(lambda: "Started" in log_of(swarm) or swarm.require_alive())
        yield swarm


@pytest.fixture(scope="module")
def stranger(guarded_swarm: PrivateSwarm) -> Iterator[Stranger]:
    stranger = Stranger(guarded_swarm.addresses[0])
    yield stranger
    stranger.close()


@pytest.fixture(scope="module")
def client(guarded_swarm: PrivateSwarm) -> Iterator[Stranger]:
    """One who asks for what a client may."""
    client = Stranger(guarded_swarm.addresses[0])
    yield client
    client.close()


def log_of(swarm: PrivateSwarm) -> str:
    return (swarm.folder / "server-0.log").read_text(errors="replace")


def answers_to(client: Stranger) -> list[torch.Tensor]:
    """Returns the answers to one request of each kind, from each of the two handlers.

    Sessions do not say that they end: a server that ends one before it has read all may lose its last answer.
    """
    found = []
    for _ in range(2):
        found += client.call("rpc_forward", forward())
        found += client.call("rpc_backward", forward(hidden(), hidden(), torch.ones(4, 1, 2, HIDDEN)))
        found += client.converse("rpc_forward_stream", [forward()])
        patient = {"alloc_timeout": 10.0}  # others may be giving their room back
        found += client.converse("rpc_inference", [opening(**patient), step(), step(places=order(1, 0))])
        found += client.converse("rpc_inference", [chained(**patient), chained("step", rows=[1])])
    return found


@pytest.fixture
def unharmed(guarded_swarm: PrivateSwarm, client: Stranger) -> Iterator[None]:
    """What a test does changes no answer to others, and the memory that it takes comes back."""
    before = answers_to(client)
    group, read = guarded_swarm.servers[0].pid, len(log_of(guarded_swarm))
    memory = memory_of(group)
    yield
    guarded_swarm.require_alive()
    for one, other in zip(before, answers_to(client), strict=True):
        assert torch.equal(one, other)
    log = log_of(guarded_swarm)[read:]
    assert "Traceback" not in log, log
    assert "crashed" not in log, "the server has started its handlers again"
    assert wait_for(lambda: memory_of(group) < memory + 64 * MIB, 20.0), (memory_of(group) - memory) / MIB


@pytest.mark.usefixtures("unharmed")
def test_what_no_client_sends_is_refused_in_one_sentence(guarded_swarm: PrivateSwarm, stranger: Stranger) -> None:
    def refused(what: str, words: str, act: Callable[[], Any]) -> None:
        read = len(log_of(guarded_swarm))
        error = outcome(act)
        assert error.startswith("P2PHandlerError") and len(error) < 800, (what, error)
        with pytest.raises(RuntimeError, match=words):
            raise RuntimeError(f"{what}: {error}")
        assert wait_for(lambda: "[WARN]" in log_of(guarded_swarm)[read:], 10.0), what
        said = [line for line in log_of(guarded_swarm)[read:].splitlines() if "[INFO]" not in line]
        assert len(said) == 1 and len(said[0]) < 800, (what, said)

    for what, (make, words) in FORWARDS.items():
        refused(what, words, lambda make=make: stranger.call("rpc_forward", make()))
    for what, (make, words) in BACKWARDS.items():
        refused(what, words, lambda make=make: stranger.call("rpc_backward", make()))
    for what, (several, words) in SESSIONS.items():
        refused(what, words, lambda make=several: stranger.converse("rpc_inference", [*make(), request("")]))
    for what, (several, words) in STREAMS.items():
        refused(what, words, lambda make=several: stranger.converse("rpc_forward_stream", make()))
    refused("a push", "must name its session_id", lambda: stranger.call("rpc_push", forward(hidden(), NONE)))
    refused("info", "does not serve 'xxx", lambda: stranger.call("rpc_info", request("x" * 10**6)))


@pytest.mark.slow
@pytest.mark.usefixtures("unharmed")
def test_sessions_that_compute_nothing_or_wait_for_room_hold_up_nobody(stranger: Stranger, client: Stranger) -> None:
    for _ in range(150):  # each allocates and frees caches, which the process of the blocks is to read
        stranger.converse("rpc_inference", [opening(hidden(length=0)), request("")])
    greedy = stranger.start(stranger.conversing("rpc_inference", [opening(hidden(62, 1), max_length=64)], True))
    assert wait_for(lambda: "in time" in outcome(lambda: client.converse("rpc_inference", [waiting()])))
    late = [stranger.start(stranger.conversing("rpc_inference", [waiting(500.0)])) for _ in range(20)]
    time.sleep(1.0)
    assert len(client.converse("rpc_inference", [opening()])) == 1, "there is room for a small one"
    greedy.cancel()
    for one in late:
        one.cancel()
    assert wait_for(lambda: "answered" in outcome(lambda: client.converse("rpc_inference", [waiting()]))), "room again"


def waiting(seconds: float = 0.2) -> Any:
    return opening(hidden(32, 1), max_length=64, alloc_timeout=seconds)


@pytest.mark.usefixtures("unharmed")
def test_streams_and_sessions_that_are_never_closed_are_bounded(stranger: Stranger, client: Stranger) -> None:
    from dist_eval.petals.server.guarded_p2p import REQUESTS_OF_A_PEER

    async def open_many() -> list[Any]:
        return [await stranger.opening("rpc_inference") for _ in range(3 * REQUESTS_OF_A_PEER)]

    silent = stranger.wait(open_many())
    try:
        for _ in range(4):  # of both handlers
            assert "busy: " in outcome(lambda: stranger.converse("rpc_inference", [opening(), request("")]))
            assert "busy: " in outcome(lambda: stranger.call("rpc_forward", forward()))
            assert len(client.converse("rpc_inference", [opening()])) == 1
    finally:
        for _, writer in silent:
            stranger.wait(_closed(writer))
    assert wait_for(lambda: "answered" in outcome(lambda: stranger.call("rpc_forward", forward())), 20.0)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.usefixtures("unharmed")
def test_a_message_is_no_longer_than_a_request_can_be(stranger: Stranger) -> None:
    async def announce(size: int) -> bytes:
        reader, writer = await stranger.opening("rpc_forward_stream")
        writer.write(b"\0" + size.to_bytes(8, "big") + b"x" * 1000)
        return await asyncio.wait_for(everything(reader), 20.0)

    for size in (10**9, 2**63):
        assert b"is too large: at most" in stranger.wait(announce(size))


@pytest.mark.usefixtures("unharmed")
def test_steps_that_others_push_into_a_session_are_bounded(stranger: Stranger) -> None:
    names = {"session_id": "mine", "step_id": "0"}
    session = stranger.start(stranger.conversing("rpc_inference", [opening(**names)], True))
    pushed = step(torch.zeros(1, 1024, HIDDEN), session_id="mine", step_id="0", pushed=True)
    for _ in range(400):
        stranger.call("rpc_push", pushed)
    session.cancel()
