"""Requests that servers pass on: the bits of server by server, and whatever fails, the client goes on from there."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ForkedSwarm, SwarmClient, requests_of, wait_for
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import HIDDEN, LAYERS, VOCABULARY, make_tiny_model, random_checkpoint, save_tiny_models

from dist_eval.model.backbone import NO_PROMPTS, SoftPrompts
from dist_eval.model.classifier import Classifier, load_locally
from dist_eval.model.swarm_backbone import SwarmBackbone
from dist_eval.petals.client import attempts
from dist_eval.petals.client.chain import (
    MOST_HOPS,
    ChainAnswer,
    ChainRequest,
    HopTimes,
    read_chain_answer,
    read_request,
    request_to,
)
from dist_eval.petals.client.deep_prompts import KEPT_TOKENS, NO_TENSOR, DeepPrompts, Packed, digests_of
from dist_eval.petals.client.failures import LACKS_PROMPTS, Failure, WrongAnswer, classify
from dist_eval.petals.client.forward import _Forward, forward
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.client.payload import Payload
from dist_eval.petals.client.requests import SwarmRequests
from dist_eval.petals.client.routes import RouteRecord, Span
from dist_eval.petals.client.server_cache import ServerCache
from dist_eval.petals.client.transport import ChainOutputs
from dist_eval.petals.server.metadata import read_metadata

SPANS = [(0, 1), (1, 3), (3, LAYERS)]
FAMILIES = ("bloom", "gemma3", "granite", "mixtral", "gpt_oss", "deepseek_v3", "xglm", "qwen3_next")
ROWS, LENGTH = 6, 20
LENGTHS = torch.tensor([20, 19, 12, 7, 3, 1])
PEERS = ["Qm" + "".join(random.Random(number).choices("abcd", k=44)) for number in range(40)]


def ids_of(rows: int = ROWS, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module", params=[pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def swarm(
    request: pytest.FixtureRequest, tiny_models: dict[str, Path], swarm_client: SwarmClient
) -> Iterator[ForkedSwarm]:
    dtype = request.param
    with swarm_client.start(tiny_models["llama"], SPANS, f"chain-{dtype}", torch_dtype=dtype) as swarm:
        yield swarm


@pytest.fixture(scope="module")
def mortal(tiny_models: dict[str, Path], swarm_client: SwarmClient) -> Iterator[ForkedSwarm]:
    with swarm_client.start(tiny_models["llama"], [*SPANS, SPANS[1], SPANS[1]], "chain-mortal") as swarm:
        yield swarm


@pytest.mark.parametrize("mode", [pytest.param("ptune", marks=pytest.mark.slow), "deep_ptune"])
def test_a_chain_with_ids_and_rows_has_the_bits_of_server_by_server(
    swarm: ForkedSwarm, swarm_client: SwarmClient, mode: str
) -> None:
    tuned = random_checkpoint(mode)
    chained, plain = (swarm_client.classifier(swarm, tuned, chains=chains) for chains in (True, False))
    by_chain, by_server = RouteRecord(), RouteRecord()
    found = chained.answer(ids_of(), LENGTHS, record=by_chain)["logits"]
    assert torch.equal(found, plain.answer(ids_of(), LENGTHS, record=by_server)["logits"])
    assert [(part.start, part.end) for part in by_chain.route] == SPANS
    assert by_chain.route == by_server.route
    traffic, itemsize = requests_of(chained).traffic(), 2 if "bfloat16" in swarm.dht_prefix else 4
    assert traffic.round_trips == 1 and requests_of(plain).traffic().round_trips == 3
    assert traffic.bytes_received == ROWS * HIDDEN * itemsize
    assert [server.requests for server in traffic.servers] == [1, 1, 1]


def test_all_outputs_or_those_of_hidden_states_can_be_asked_for(swarm: ForkedSwarm, swarm_client: SwarmClient) -> None:
    chained, plain = (swarm_client.backbone(swarm, chains=chains) for chains in (True, False))
    with torch.no_grad():
        whole = plain.hidden_states(ids_of())
        assert torch.equal(chained.hidden_states(ids_of()), whole)
    rows = torch.tensor([77, 3, 5, 119, 3])
    embedded = chained.embedded(ids_of(), None)
    assert torch.equal(forward(chained.requests, embedded, None, rows=rows), whole.flatten(0, 1)[rows])
    parts = Inputs.of(embedded).tensor_split(2)
    halves = _Forward(chained.requests, DeepPrompts(), (), RouteRecord()).from_block_in_halves(0, parts, rows)
    assert torch.equal(run(halves), whole.flatten(0, 1)[rows])


def run(coroutine: Any) -> Any:
    from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker

    return RemoteExpertWorker.run_coroutine(coroutine)


def passed_on(
    requests: SwarmRequests, chain: list[Span], length: int = 3, prompts: torch.Tensor | None = None
) -> ChainOutputs:
    """Sends a request to a chain, whatever its servers are."""
    hidden, deep = torch.ones(2, length, HIDDEN), DeepPrompts(prompts)
    patience = [20.0] * len(chain)
    outputs: ChainOutputs = run(requests.transport.send_chain(chain, patience, Inputs.of(hidden), deep))
    return outputs


def test_requests_are_passed_to_announced_servers_of_the_next_blocks_only(
    mortal: ForkedSwarm, swarm_client: SwarmClient
) -> None:
    from hivemind.p2p import PeerID

    requests = swarm_client.backbone(mortal).requests
    first, second, *_ = sorted(requests.servers.spans(), key=lambda span: span.start)
    stranger, last = PeerID.from_base58(PEERS[0]), Span(first.peer, 3, LAYERS, first.announced)
    alone = passed_on(requests, [first])
    assert alone.answer.end == 1 and not alone.answer.why
    for further in (Span(stranger, 1, 3), Span(second.peer, 1, LAYERS), last):
        chain = [first, *([second] if further.start == 3 else []), further]
        found = passed_on(requests, chain)
        assert found.answer.end == further.start
        assert f"is not announced as a server of blocks {further.start}:{further.end}" in found.answer.why
        if further.start == 1:
            assert torch.equal(found.outputs, alone.outputs), "no block is lost"
    with pytest.raises(Exception, match="Received a chain that continues at block 3, not 1") as caught:
        passed_on(requests, [first, Span(second.peer, 3, 4)])
    assert classify(caught.value) is Failure.REFUSED


def sent_by(classifier: Classifier) -> tuple[torch.Tensor, int, int]:
    """Returns logits, and how many bytes and requests they took to send."""
    requests = requests_of(classifier)
    before = requests.traffic()
    logits = classifier.logits(ids_of(), LENGTHS)
    after = requests.traffic()
    return logits, after.bytes_sent - before.bytes_sent, after.round_trips - before.round_trips


def test_deep_prompts_travel_once_and_again_to_servers_that_have_forgotten_them(
    mortal: ForkedSwarm, swarm_client: SwarmClient
) -> None:
    tuned = random_checkpoint("deep_ptune")
    classifier, other = swarm_client.classifier(mortal, tuned), swarm_client.backbone(mortal).requests
    assert tuned.prompts is not None and tuned.deep_prompts is not None
    small, outputs = ids_of().nbytes + tuned.prompts.nbytes, ROWS * (LENGTH + len(tuned.prompts)) * HIDDEN * 4
    requests_of(classifier).servers.excluded = {*mortal.peers[len(SPANS) :]}  # one route only
    logits, *taken = sent_by(classifier)
    assert taken == [small + tuned.deep_prompts.nbytes, 1]
    assert sent_by(classifier)[1:] == (small, 1)
    for block, expected in (
        (0, (small + tuned.deep_prompts.nbytes, 1)),  # the first server says so itself
        (3, (small + outputs + tuned.deep_prompts[3].nbytes, 2)),  # the one before the last has computed its blocks
    ):
        (span,) = [span for span in other.servers.spans() if span.start == block]
        as_many_as_it_keeps = torch.ones(LAYERS, KEPT_TOKENS, HIDDEN)
        passed_on(other, [span], KEPT_TOKENS, as_many_as_it_keeps)
        found, *taken = sent_by(classifier)
        assert torch.equal(found, logits)
        assert taken == [*expected]
        assert sent_by(classifier)[1:] == (small, 1)
    assert not requests_of(classifier).router.chains and not requests_of(classifier).traffic().retries


def test_sessions_send_deep_prompts_once_and_again_to_servers_that_have_forgotten_them(
    mortal: ForkedSwarm, swarm_client: SwarmClient
) -> None:
    tuned = random_checkpoint("deep_ptune")
    assert tuned.deep_prompts is not None
    prompts = SoftPrompts(tuned.prompts, tuned.deep_prompts + 1)  # not those of another test
    backbone, other = swarm_client.backbone(mortal), swarm_client.backbone(mortal).requests
    backbone.requests.servers.excluded = {*mortal.peers[len(SPANS) :]}  # one route only

    def session() -> tuple[torch.Tensor, int]:
        before = backbone.requests.traffic().bytes_sent
        with closing(backbone.session(ROWS, LENGTH, prompts)) as opened:
            found = opened.step(ids_of())
        return found, backbone.requests.traffic().bytes_sent - before

    found, sent = session()
    without = sent - tuned.deep_prompts.nbytes
    assert session()[1] == without
    for block in (0, 3):
        (span,) = [span for span in other.servers.spans() if span.start == block]
        as_many_as_it_keeps = torch.ones(LAYERS, KEPT_TOKENS, HIDDEN)
        passed_on(other, [span], KEPT_TOKENS, as_many_as_it_keeps)
        again, taken = session()
        assert torch.equal(again, found)
        assert taken == without + sent, "digests are refused, then the prompts are sent"
        assert session()[1] == without
    assert not backbone.requests.traffic().retries


def test_a_digest_stands_for_what_was_sent_only(mortal: ForkedSwarm, swarm_client: SwarmClient) -> None:
    requests = swarm_client.backbone(mortal).requests
    (span,) = [span for span in requests.servers.spans() if span.start == 0]
    prompts = torch.randn(1, 1, 9, HIDDEN)

    def send(digests: list[bytes], deep: torch.Tensor, length: int = 10) -> None:
        tensors = [Payload.of(torch.ones(1, length, HIDDEN)), Payload.of(deep)]
        run(requests.transport.call_chain(span, tensors, ChainRequest(chain=[], prompts=digests), 1 << 20, 20.0))

    async def step(digests: list[bytes], deep: torch.Tensor) -> None:
        cache = await ServerCache.open(requests.transport, span, 10, Packed(deep), rolls_back=False)
        inputs = [(Inputs.of(torch.ones(1, 10, HIDDEN)), ChainRequest(chain=[], prompts=digests))]
        try:
            await cache.answers(inputs, 20.0)
        finally:
            await cache.drop()

    for digests, deep, words in (
        (digests_of(prompts), NO_TENSOR, LACKS_PROMPTS),
        (digests_of(prompts + 1), prompts, "that do not match their digests"),
        (digests_of(prompts + 1), NO_TENSOR, LACKS_PROMPTS),
        (digests_of(prompts * float("nan")), prompts * float("nan"), "not finite"),
    ):
        with pytest.raises(Exception, match=words):
            send(digests, deep)
        with pytest.raises(Exception, match=words):
            run(step(digests, deep))
    send(digests_of(prompts), prompts)
    run(step(digests_of(prompts), NO_TENSOR))
    send(digests_of(prompts), NO_TENSOR)
    with pytest.raises(Exception, match="longer than the texts"):
        send(digests_of(prompts), NO_TENSOR, length=8)


def test_what_a_killed_server_held_is_computed_by_another_one(
    mortal: ForkedSwarm, swarm_client: SwarmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_MIN_STALL_SECONDS", 2.0)
    classifier = swarm_client.classifier_on_all(mortal, random_checkpoint("deep_ptune"))
    requests = requests_of(classifier)
    before = [classifier.logits(ids_of(), LENGTHS) for _ in range(20)][-1]
    frozen = mortal.group(1)
    os.killpg(frozen, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(2):
                records = [RouteRecord() for _ in range(8)]
                answers = pool.map(lambda record: classifier.logits(ids_of(), LENGTHS, record=record), records)
                assert all(torch.equal(answer, before) for answer in answers)
                assert all([(part.start, part.end) for part in record.route] == SPANS for record in records)
                mortal.kill_server(1)
    finally:
        if mortal.servers[1].poll() is None:
            os.killpg(frozen, signal.SIGCONT)
    at_fault = {server.peer for server in requests.traffic().servers if server.failures}
    assert at_fault <= {mortal.peers[1]}


def pieces(backbone: SwarmBackbone, prompts: SoftPrompts) -> tuple[list[torch.Tensor], RouteRecord, int]:
    """Returns what a session answers, its route, and how many bytes it received."""
    transport, record = backbone.requests.transport, RouteRecord()
    before, ids = transport.bytes_received, ids_of(length=500)  # in three messages
    with closing(backbone.session(ROWS, 520, prompts)) as session:
        found = [session.step(ids, record=record, rows=torch.tensor([3, 499, 2999, 1]))]
        for _ in range(3):
            found.append(session.step(ids[:, :1], rows=torch.tensor([5, 2])))
        found += [session.step(ids[:, 7:17], start=490), session.step(ids[:, 3:5])]  # back, and on
        ways = [ids[:, 20:30], ids[:, 30:33]]
        found += session.continuations(ways, rows=[None, torch.tensor([17, 0])])
    return found, record, transport.bytes_received - before


@pytest.mark.parametrize("mode", ["ptune", "deep_ptune"])
def test_a_session_by_chain_has_the_bits_of_server_by_server(
    swarm: ForkedSwarm, swarm_client: SwarmClient, mode: str
) -> None:
    tuned = random_checkpoint(mode)
    prompts = SoftPrompts(tuned.prompts, tuned.deep_prompts)
    chained, plain = (swarm_client.backbone(swarm, chains=chains) for chains in (True, False))
    found, by_chain, received = pieces(chained, prompts)
    expected, by_server, _ = pieces(plain, prompts)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert [(part.start, part.end) for part in by_chain.route] == SPANS
    assert by_chain.route == by_server.route
    itemsize = 2 if "bfloat16" in swarm.dht_prefix else 4
    assert received == (4 + 3 * 2 + ROWS * 10 + ROWS * 2 + ROWS * 10 + 2) * HIDDEN * itemsize
    assert chained.requests.router.retries == 0


def test_rows_of_a_session_are_reordered_on_all_servers_of_a_chain(
    swarm: ForkedSwarm, swarm_client: SwarmClient
) -> None:
    requests = swarm_client.backbone(swarm).requests
    spans = sorted(requests.servers.spans(), key=lambda span: span.start)
    texts, token = torch.randn(ROWS, 5, HIDDEN), torch.randn(ROWS, 1, HIDDEN)
    order = torch.tensor([3, 3, 0, 1, 5, 2])

    async def steps(chain: list[Span], texts: torch.Tensor, token: torch.Tensor) -> list[torch.Tensor]:
        request = request_to(chain, [20.0] * len(chain), None, ids=False) if len(chain) > 1 else None
        cache = await ServerCache.open(requests.transport, chain[0], 6, Packed(NO_TENSOR), rolls_back=False)
        first = await cache.outputs(await cache.send(Inputs.of(texts), 0, request))
        second = await cache.outputs(await cache.send(Inputs.of(token), 5, request, order))
        await cache.close()
        return [first, second]

    found, expected = run(steps(spans, texts, token)), [texts, token]
    for span in spans:
        expected = run(steps([span], *expected))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_session_goes_on_elsewhere_when_a_server_of_its_chain_is_frozen_or_killed(
    mortal: ForkedSwarm, swarm_client: SwarmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_MIN_STALL_SECONDS", 2.0)
    requests = (backbone := swarm_client.backbone(mortal)).requests
    _, dead, _, victim, spare = mortal.peers
    ids, group, record = ids_of(), mortal.group(3), RouteRecord()

    def free() -> list[int]:
        requests.servers.excluded = {dead, victim}
        return list(requests.servers.free_cache().values())

    def freeze() -> None:
        os.killpg(group, signal.SIGSTOP)

    def kill() -> None:
        os.killpg(group, signal.SIGCONT)
        mortal.kill_server(3)

    before = free()
    requests.servers.excluded = {dead}
    with torch.no_grad():
        whole = backbone.hidden_states(ids)
    for stop in (freeze, kill):
        requests.servers.excluded = {dead, spare}
        with closing(backbone.session(ROWS, LENGTH)) as session:
            found = [session.step(ids[:, :12], record=record), session.step(ids[:, 12:13])]
            assert record.route.pop(1).peer == victim
            stop()
            requests.servers.excluded = {dead}
            for way in session.continuations([ids[:, 13:15]] * 12):
                torch.testing.assert_close(way, whole[:, 13:15], atol=2e-5, rtol=0)
            found += [session.step(part) for part in ids[:, 13:].split([1, 1, 5], dim=1)]
            torch.testing.assert_close(torch.cat(found, dim=1), whole, atol=2e-5, rtol=0)
            assert session.step(ids[:, 4:5], start=4, record=record).shape == (ROWS, 1, HIDDEN)
            assert [part.peer for part in record.route if part.start == 1][-1] == spare
            os.killpg(group, signal.SIGCONT) if stop is freeze else None
            record.route.clear()
    assert wait_for(lambda: free() == before), "and what it held is free"
    session = backbone.session(ROWS, LENGTH)
    session.step(ids)
    assert {before[place] - left for place, left in enumerate(free())} == {ROWS * LENGTH, 2 * ROWS * LENGTH}
    run(session._first.cache.drop())  # type: ignore[union-attr]
    assert wait_for(lambda: free() == before), "when those before are gone"


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_chains_have_the_bits_of_server_by_server_in_all_families(
    name: str, swarm_client: SwarmClient, tmp_path: Path
) -> None:
    folder = save_tiny_models(tmp_path, name)[name]
    generator = torch.Generator().manual_seed(5)
    soft, deep = (torch.randn(*size, 3, HIDDEN, generator=generator) for size in ((), (LAYERS,)))
    for dtype in ("float32", "bfloat16"):
        options = {"torch_dtype": dtype}
        with swarm_client.start(folder, [(0, 2), (2, LAYERS)], f"chain-{name}-{dtype}", **options) as swarm:
            chained, plain = (swarm_client.backbone(swarm, chains=chains) for chains in (True, False))
            for prompts in (NO_PROMPTS, SoftPrompts(soft, None), SoftPrompts(soft, deep)):
                with torch.no_grad():
                    found, expected = (one.hidden_states(ids_of(), prompts) for one in (chained, plain))
                assert torch.equal(found, expected)
            assert chained.requests.traffic().round_trips == 3


def adapter_of(folder: Path) -> str:
    """Makes a LoRA adapter for the tiny Llama."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(make_tiny_model("llama"), LoraConfig(r=4, target_modules=["q_proj", "up_proj"]))
    for name, tensor in model.named_parameters():
        if "lora_B" in name:  # zero by default: the adapter would change nothing
            torch.nn.init.normal_(tensor)
    model.save_pretrained(folder / "lora")
    return str(folder / "lora")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "int8", "adapter"])
def test_chains_have_the_bits_of_server_by_server_with_quantized_weights_and_with_an_adapter(
    kind: str, tiny_models: dict[str, Path], swarm_client: SwarmClient, tmp_path: Path
) -> None:
    adapter = adapter_of(tmp_path) if kind == "adapter" else None
    options = {"torch_dtype": "bfloat16", **({"adapters": [adapter]} if adapter else {"quant_type": kind})}
    tuned = random_checkpoint("deep_ptune")
    with swarm_client.start(tiny_models["llama"], SPANS, f"chain-{kind}", **options) as swarm:
        chained, plain = (
            swarm_client.classifier(swarm, tuned, chains=chains, adapter=adapter) for chains in (True, False)
        )
        found = [chained.logits(ids_of(), LENGTHS) for _ in range(2)]  # with deep prompts, and with their digests
        expected = plain.logits(ids_of(), LENGTHS)
        assert all(torch.equal(one, expected) for one in found)
        assert [requests_of(one).traffic().round_trips for one in (chained, plain)] == [2, len(SPANS)]
        without = load_locally(str(tiny_models["llama"]), tuned).logits(ids_of(), LENGTHS)
        assert (expected - without).abs().max() > 0.1


def packed(fields: Any) -> bytes:
    from hivemind.utils.serializer import MSGPackSerializer

    found: bytes = MSGPackSerializer.dumps(fields)
    return found


def hop(number: int, begin: int, end: int, **fields: Any) -> dict[str, Any]:
    return {"peer": PEERS[number], "start": begin, "end": end, "patience": 1.0, **fields}


@pytest.mark.parametrize(
    "fields",
    [
        {"chain": [hop(0, 1, 2), hop(1, 3, 4)]},  # a gap
        {"chain": [hop(0, 1, 3), hop(1, 2, 4)]},  # an overlap
        {"chain": [hop(0, 1, 2), hop(0, 2, 3)]},  # a server twice
        {"chain": [hop(0, 2, 1)]},
        {"chain": [hop(0, 1, 2, peer="x")]},
        {"chain": [hop(0, 1, 2, patience=float("inf"))]},
        {"chain": [hop(0, 1, 2, patience=-1.0)]},
        {"chain": [hop(0, 1, 10**6)]},
        {"chain": [hop(number, number, number + 1) for number in range(MOST_HOPS)]},
        {"chain": None},
        {"chain": [], "rows": [-1]},
        {"chain": [], "rows": [1.5]},
        {"chain": [], "ids": 1},
    ],
)
def test_requests_that_no_client_of_ours_sends_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        read_request(fields)


def read(fields: dict[str, Any]) -> ChainRequest | None:
    return read_request(read_metadata(packed(fields)))


def test_requests_are_read_as_they_were_sent() -> None:
    longest = [hop(number, number, number + 1) for number in range(MOST_HOPS - 1)]
    request = read({"points": 0.0, "args_structure": ((b"x",), {}), "chain": longest, "rows": [3, 1]})
    assert request is not None
    assert read(request.packed()) == request
    assert read(request.after_first().packed()).chain == request.chain[1:]  # type: ignore[union-attr]
    assert read({"points": 0.0}) is None
    assert read_request(read_metadata(b"")) is None


@given(
    st.one_of(
        st.binary(max_size=60), st.dictionaries(st.sampled_from(["end", "hops", "why"]), st.integers(-(2**63), 2**63))
    )
)
def test_answers_are_believed_only_if_a_server_of_the_chain_ends_there(content: Any) -> None:
    with pytest.raises(WrongAnswer):
        read_chain_answer(content if isinstance(content, bytes) else packed(content), [1, 3, 4])


def test_answers_say_which_servers_computed_and_when() -> None:
    hops = [HopTimes(own=1.0, call=5.0), HopTimes(own=2.0, call=2.5), HopTimes(own=2.0)]
    answer = ChainAnswer(end=4, hops=hops, why="\x1b[2J")
    read = read_chain_answer(packed(answer.packed()), [1, 3, 4])
    assert (read.end, read.hops, read.why) == (4, hops, "\\x1b[2J")
    assert read.times(10.0, 17.0) == [(10.0, 12.0), (12.0, 14.5), (14.5, 17.0)]
    lie = ChainAnswer(end=1, hops=[HopTimes(own=0.0, call=1e5)])
    assert lie.times(10.0, 17.0) == [(10.0, 10.0)], "no server is done before it was asked"
    for end, count in ((2, 1), (3, 1), (4, 2)):
        with pytest.raises(WrongAnswer):
            read_chain_answer(packed(ChainAnswer(end=end, hops=hops[:count]).packed()), [1, 3, 4])
