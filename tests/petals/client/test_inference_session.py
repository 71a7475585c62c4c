"""Sessions on real servers: the outputs of a forward, piece by piece, whatever happens to the servers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
import torch
from conftest import ForkedSwarm, SwarmClient, wait_for
from hivemind.proto.p2pd_pb2 import RPCError
from tiny_models import LAYERS, random_checkpoint

from dist_eval.errors import EvaluationError, NoCacheError, RefusedError
from dist_eval.model.backbone import SoftPrompts, load_local_backbone
from dist_eval.model.swarm_backbone import SwarmBackbone
from dist_eval.petals.client.admission import STEPS
from dist_eval.petals.client.deep_prompts import NO_TENSOR, DeepPrompts, Packed
from dist_eval.petals.client.failures import Failure, classify, drop_traceback
from dist_eval.petals.client.forward import forward
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.raw_stream import RawStream
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.client.server_cache import REQUEST_TOKENS, CacheLost, SentStep, ServerCache
from dist_eval.petals.client.session_segment import Chunk, Segment, SessionSettings
from dist_eval.petals.client.streams import SessionStream
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server.private import PrivateSwarm

ROWS, LENGTH = 3, 24


@pytest.fixture
def backbone(family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient) -> SwarmBackbone:
    return swarm_client.backbone(family_swarms["llama"])


@pytest.fixture(scope="module")
def replicas_swarm(tiny_models: dict[str, Path], swarm_client: SwarmClient) -> Iterator[ForkedSwarm]:
    with swarm_client.start(tiny_models["llama"], [(0, 2), (2, 4), (0, 4)], "sessions") as swarm:
        yield swarm


def some_ids(rows: int = ROWS, length: int = LENGTH, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, 100, (rows, length), generator=torch.Generator().manual_seed(seed))


def close_to(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=2e-5)


def free_cache(backbone: SwarmBackbone) -> dict[str, int]:
    return {str(span.peer): left for span, left in backbone.requests.servers.free_cache().items()}


@pytest.mark.parametrize("mode", [None, "ptune", "deep_ptune"])
def test_pieces_of_a_text_give_the_outputs_of_a_forward(backbone: SwarmBackbone, mode: str | None) -> None:
    tuned, ids = random_checkpoint(mode), some_ids()
    prompts = SoftPrompts(tuned.prompts, tuned.deep_prompts)
    with torch.no_grad():
        whole = backbone.hidden_states(ids, prompts)[:, -LENGTH:]
    with closing(backbone.session(ROWS, LENGTH, prompts)) as session:
        pieces = [session.step(piece) for piece in torch.split(ids, [10, 1, 1, 12], dim=1)]
        assert close_to(torch.cat(pieces, dim=1), whole)
        again = session.step(ids[:, 10:], start=10)  # rolled back, or sent anew
        assert close_to(again, whole[:, 10:])
        with pytest.raises(ValueError, match=r"2 tokens at position \d+ do not fit into a session of at most"):
            session.step(ids[:, :2], start=23)
    route = RouteRecord()
    with closing(backbone.session(ROWS, LENGTH)) as session:
        session.step(ids, record=route)
    assert [(segment.start, segment.end) for segment in route.route] == [(0, 2), (2, LAYERS)]


def test_a_session_in_this_process_gives_the_same(backbone: SwarmBackbone, tiny_models: dict[str, Path]) -> None:
    tuned, ids = random_checkpoint("deep_ptune"), some_ids()
    prompts = SoftPrompts(tuned.prompts, tuned.deep_prompts)
    local = load_local_backbone(str(tiny_models["llama"]))
    one, other = (host.session(ROWS, LENGTH, prompts) for host in (local, backbone))
    with closing(one) as here, closing(other) as there:
        for piece, start in ((ids[:, :0], None), (ids[:, :9], None), (ids[:, 9:], None), (ids[:, 4:7], 4)):
            assert close_to(here.step(piece, start), there.step(piece, start))


def test_what_is_sent_again_is_in_the_same_pieces_but_for_single_tokens(
    backbone: SwarmBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

    sent: list[int] = []
    send = ServerCache.send

    async def noted(cache: ServerCache, inputs: Inputs, *further: Any) -> SentStep:
        sent.append(inputs.length)
        return await send(cache, inputs, *further)

    monkeypatch.setattr(ServerCache, "send", noted)
    ids = some_ids()
    with closing(backbone.session(ROWS, LENGTH)) as session, torch.no_grad():
        for piece in torch.split(ids[:, :20], [10, 5, 1, 1, 3], dim=1):
            session.step(piece)
        sent.clear()
        for segment in session._segments():  # type: ignore[attr-defined]
            RemoteExpertWorker.run_coroutine(segment.close())
        assert close_to(session.step(ids[:, 20:]), backbone.hidden_states(ids)[:, 20:])
    assert sent == [10, 5, 2, 3, 4]


def test_the_cache_is_given_back(backbone: SwarmBackbone) -> None:
    before = free_cache(backbone)
    with closing(backbone.session(ROWS, LENGTH)) as session:
        session.step(some_ids())
        assert {before[peer] - left for peer, left in free_cache(backbone).items()} == {ROWS * LENGTH * 2}
    assert wait_for(lambda: free_cache(backbone) == before, 5)


def test_servers_without_room_say_so_and_keep_nothing(
    family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient
) -> None:
    backbone = swarm_client.backbone(family_swarms["llama"], max_retries=0)
    before = free_cache(backbone)
    with (
        closing(backbone.session(ROWS, 2000)) as session,
        pytest.raises(NoCacheError, match="no answer for blocks 0:2"),
    ):
        session.step(some_ids())
    assert wait_for(lambda: free_cache(backbone) == before, 5)
    with torch.no_grad():
        backbone.hidden_states(some_ids())  # it still answers


def test_a_long_step_takes_several_messages_a_few_of_which_are_on_the_way(
    backbone: SwarmBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, length = 10, 3 * REQUEST_TOKENS // 10 + 30
    ids, events = some_ids(rows, length), list[str]()
    send, outputs = ServerCache.send, ServerCache.outputs
    monkeypatch.setattr(ServerCache, "send", lambda *step: (events.append("sent"), send(*step))[1])
    monkeypatch.setattr(ServerCache, "outputs", lambda *step: (events.append("awaited"), outputs(*step))[1])
    parts = [backbone.embedded(part, None) for part in ids.split(4)]
    whole = torch.cat([forward(backbone.requests, part, None) for part in parts])
    with closing(backbone.session(rows, length)) as session:
        assert close_to(session.step(ids), whole)
    assert events == [*["sent"] * 3, "awaited", "sent", *["awaited"] * 3]


def test_a_stream_that_ended_is_told_by_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(cache: ServerCache, chunk: Inputs, *further: Any) -> SentStep:
        if cache.position:  # the server has refused the first step, and ended the stream
            raise CacheLost
        cache.position = chunk.length
        return SentStep(asyncio.get_running_loop().create_future(), chunk.shape)

    async def outputs(cache: ServerCache, step: SentStep) -> torch.Tensor:
        raise ConnectionError("no room")

    monkeypatch.setattr(ServerCache, "send", send)
    monkeypatch.setattr(ServerCache, "outputs", outputs)

    async def answers() -> None:
        nothing: Any = None
        stream: Any = MagicMock()
        chunks = [(Inputs.of(torch.ones(1, 2, 4)), None)] * 3
        await ServerCache(nothing, stream, nothing, 6, Packed(NO_TENSOR), rolls_back=False).answers(chunks, 10.0)

    with pytest.raises(ConnectionError, match="no room"):
        asyncio.run(answers())


def test_all_steps_in_flight_fail_at_once_when_the_server_ends_the_stream() -> None:
    async def outcomes() -> list[type[Exception]]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        transport: Any = SimpleNamespace(session_tensors=AsyncMock(return_value=[]), session_head=lambda *_: {})
        segment: Any = None
        stream = SessionStream(RawStream(ours))
        cache = ServerCache(transport, stream, segment, 6, Packed(NO_TENSOR), rolls_back=False)
        steps = [await cache.send(Inputs.of(torch.ones(1, 2, 4)), place) for place in (0, 2, 4)]
        theirs.close()
        found = list[type[Exception]]()
        for step in steps:
            with pytest.raises(Exception) as caught:
                await asyncio.wait_for(cache.answer_to(step), 10)
            found.append(caught.type)
            await cache.drop()  # as the first one does that fails
        assert ours.fileno() == -1
        return found

    first, *others = asyncio.run(outcomes())
    assert issubclass(first, OSError) and others == [CacheLost, CacheLost]


def test_a_server_that_refuses_a_session_before_its_first_step_says_why() -> None:
    async def refused() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        content = RPCError(message="busy: too many sessions").SerializeToString()
        theirs.send(b"\1" + len(content).to_bytes(8, "big") + content)

        async def tensors(*_: Any, **__: Any) -> list[Any]:
            await asyncio.sleep(0.1)  # meanwhile the refusal arrives
            return []

        span: Any = SimpleNamespace(peer="peer", start=0, end=2, dtype="float32")
        transport: Any = SimpleNamespace(
            session_tensors=tensors,
            session_head=lambda *_: {},
            has_sessions=AsyncMock(return_value=True),
            open_session=AsyncMock(return_value=SessionStream(RawStream(ours))),
        )
        settings = SessionSettings(transport, 2, 6, 6, DeepPrompts(), rolls_back=False)
        choice: Any = SimpleNamespace(segment=span, chain=[], patience=[])
        with theirs:
            chunks = [Chunk(Inputs.of(torch.ones(1, 2, 4)), None)]
            await Segment(settings, 0, 2)._opened_with(Packed(NO_TENSOR), choice, chunks, 10.0)

    with pytest.raises(Exception, match="busy: too many sessions") as caught:
        asyncio.run(refused())
    drop_traceback(caught.value)  # it ends
    assert classify(caught.value) is Failure.NO_ANSWER


def test_a_server_that_stops_under_many_continuations_loses_none(
    replicas_swarm: ForkedSwarm,
    swarm_client: SwarmClient,
    make_tuned: Callable[..., TunedCheckpoint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = swarm_client.classifier_on_all(replicas_swarm, make_tuned(None), request_timeout=5).backbone
    assert isinstance(backbone, SwarmBackbone)
    requests, group = backbone.requests, replicas_swarm.group(2)
    requests.servers.excluded = {str(span.peer) for span in requests.servers.spans() if span.end - span.start < LAYERS}
    answers, outputs = 0, ServerCache.outputs

    async def stopped_meanwhile(cache: ServerCache, step: SentStep) -> torch.Tensor:
        nonlocal answers
        answers += 1
        if answers == 10:
            requests.servers.excluded = set()
            os.killpg(group, signal.SIGSTOP)
        return await outputs(cache, step)

    ids, ways, route = some_ids(), [some_ids(length=7, seed=seed) for seed in range(24)], RouteRecord()
    with closing(backbone.session(ROWS, 2 * LENGTH)) as session, torch.no_grad():
        session.step(ids)
        monkeypatch.setattr(ServerCache, "outputs", stopped_meanwhile)
        try:
            found = session.continuations(ways, route)
        finally:
            os.killpg(group, signal.SIGCONT)
        whole = [backbone.hidden_states(torch.cat([ids, way], dim=1))[:, LENGTH:] for way in ways]
    assert {(segment.start, segment.end) for segment in route.route} == {(0, 4), (0, 2), (2, 4)}
    assert all(close_to(one, other) for one, other in zip(found, whole, strict=True))


def test_a_server_that_is_killed_costs_what_it_was_sent_and_nothing_else(
    replicas_swarm: ForkedSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    tuned, ids = make_tuned("deep_ptune"), some_ids()
    prompts = SoftPrompts(tuned.prompts, tuned.deep_prompts)
    classifier = swarm_client.classifier_on_all(replicas_swarm, tuned)
    backbone = classifier.backbone
    assert isinstance(backbone, SwarmBackbone)
    requests, everyone = backbone.requests, backbone.requests.servers.spans()
    whole_server = next(span for span in everyone if span.end - span.start == LAYERS)
    with torch.no_grad():
        whole = backbone.hidden_states(ids, prompts)[:, -LENGTH:]
    requests.servers.excluded = {str(span.peer) for span in everyone if span is not whole_server}
    with closing(backbone.session(ROWS, LENGTH, prompts)) as session:
        first = session.step(ids[:, :20])
        requests.servers.excluded = set()
        replicas_swarm.kill_server(2)
        route = RouteRecord()
        ways = session.continuations([ids[:, 20:], ids[:, 20:22]] * 6, route)
        assert {(segment.start, segment.end) for segment in route.route} == {(0, 4), (0, 2), (2, 4)}
        assert all(close_to(way, whole[:, 20 : 20 + way.shape[1]]) for way in ways)
        last = session.step(ids[:, 20:])
        assert close_to(torch.cat([first, last], dim=1), whole)
        assert close_to(session.step(ids[:, 5:], start=5), whole[:, 5:])
    assert requests.traffic().retries <= 1


def test_a_rolled_back_session_sends_only_what_is_new_and_forgets_what_was(backbone: SwarmBackbone) -> None:
    """Bits are the same after any history, so that results do not depend on what a session was used for before."""
    prefix, texts = some_ids(length=300), [some_ids(length=25, seed=seed) for seed in range(3)]

    def outputs(order: list[int]) -> dict[int, torch.Tensor]:
        with closing(backbone.session(ROWS, 330)) as session:
            session.step(prefix)
            before = backbone.requests.transport.bytes_sent
            found = {number: session.step(texts[number], start=300) for number in order}
        tokens = 2 * len(order) * ROWS * 25  # to two servers
        sent = backbone.requests.transport.bytes_sent - before
        assert sent < tokens * backbone.word_embeddings.embedding_dim * 4 * 1.01
        return found

    one, other = outputs([0, 1, 2]), outputs([2, 1, 0])
    with closing(backbone.session(ROWS, 330)) as session:
        session.step(prefix)
        ways = session.continuations(texts)
    for number in range(3):
        assert torch.equal(one[number], other[number])
        assert torch.equal(one[number], ways[number])
    with torch.no_grad():
        forward = backbone.hidden_states(torch.cat([prefix, texts[1]], dim=1))
    assert close_to(one[1], forward[:, 300:])


def test_several_continuations_are_on_the_way_to_a_server(
    backbone: SwarmBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    unanswered, most, outputs = Counter[int](), Counter[int](), ServerCache.outputs

    async def noted(cache: ServerCache, step: SentStep) -> torch.Tensor:
        first = cache.segment.start
        unanswered[first] += 1
        most[first] = max(most[first], unanswered[first])
        try:
            while most[first] < 2 * STEPS:  # no step is answered before all of them were sent
                await asyncio.sleep(0.01)
            return await outputs(cache, step)
        finally:
            unanswered[first] -= 1

    ways = [some_ids(length=7, seed=seed) for seed in range(2 * STEPS)]
    with closing(backbone.session(ROWS, 2 * LENGTH)) as session, ThreadPoolExecutor(2) as threads:
        session.step(some_ids())
        before = [session.continuations([way])[0] for way in ways]
        monkeypatch.setattr(ServerCache, "outputs", noted)
        some, same = threads.map(session.continuations, [ways, ways[::-1]])
    assert most == {0: 2 * STEPS}  # as many as each of the two servers should have
    assert all(torch.equal(one, other) for one, other in zip(before, some, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(some, same[::-1], strict=True))


def test_a_continuation_that_fails_fails_all_of_its_call_and_no_other(
    backbone: SwarmBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, broken = ServerCache.send, some_ids(length=5, seed=8)
    with closing(backbone.session(ROWS, 2 * LENGTH)) as session:
        session.step(some_ids())
        expected = session.continuations([broken])

        async def failing(cache: ServerCache, inputs: Inputs, *further: Any) -> SentStep:
            if inputs.length == 6:
                raise RefusedError("not this one")
            return await send(cache, inputs, *further)

        monkeypatch.setattr(ServerCache, "send", failing)
        with pytest.raises(EvaluationError, match="not this one"):
            session.continuations([broken, some_ids(length=6), broken])
        assert torch.equal(session.continuations([broken])[0], expected[0])
