"""Requests to real servers: exact results, bytes sent and received, and servers that die."""

from __future__ import annotations

import functools
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import TIMEOUT, ForkedSwarm, SwarmClient, requests_of, wait_for
from tiny_models import HIDDEN, LAYERS

from dist_eval.errors import OutageError, RefusedError, SwarmError
from dist_eval.model.backbone import SoftPrompts
from dist_eval.model.classifier import Classifier, with_tuned_head
from dist_eval.model.swarm_backbone import SwarmBackbone, load_swarm_backbone
from dist_eval.petals.client import attempts
from dist_eval.petals.client.client import join_swarm, rejoin_swarm
from dist_eval.petals.client.forward import forward
from dist_eval.petals.client.requests import SwarmRequests
from dist_eval.petals.client.router import Router
from dist_eval.petals.client.routes import UNKNOWN, RouteRecord, Span
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server.private import PrivateSwarm
from dist_eval.process.shared_state import SharedStates

ROWS, LENGTH, PROMPTS = 6, 20, 5
NUMBERS = ROWS * (LENGTH + PROMPTS) * HIDDEN
"""Numbers in a batch's activations."""

IDS = 8 * ROWS * LENGTH + 4 * PROMPTS * HIDDEN
"""Bytes of a batch's token ids, and of the soft prompts before them."""


@pytest.fixture(scope="module")
def bfloat16_swarm(tiny_models: dict[str, Path], swarm_client: SwarmClient) -> Iterator[PrivateSwarm]:
    with swarm_client.start(tiny_models["llama"], [(0, 4)], "half", torch_dtype="bfloat16") as swarm:
        yield swarm


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 100, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))
    return ids, torch.tensor([20, 19, 12, 7, 3, 1])


def sent_as_float32(classifier: Classifier, ids: torch.Tensor) -> torch.Tensor:
    """Hidden states for which each server is sent float32."""
    requests, tuned = requests_of(classifier), classifier.tuned
    hidden = classifier.backbone.embedded(ids, tuned.prompts)
    for span in sorted(requests.servers.spans(), key=lambda span: span.start):
        unknown = replace(span, announced=UNKNOWN)
        hidden = requests.ask(unknown, hidden.to(torch.float32), tuned.deep_prompts)
    return hidden


def test_activations_are_sent_in_the_servers_dtype_and_no_bit_changes(
    bfloat16_swarm: PrivateSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    classifier = swarm_client.classifier(bfloat16_swarm, make_tuned("deep_ptune"))
    ids, _ = batch()
    ours = classifier.backbone.hidden_states(ids, classifier.prompts)
    traffic = requests_of(classifier).traffic()
    prompts = LAYERS * PROMPTS * HIDDEN  # once for all examples
    assert traffic.bytes_sent == IDS + 2 * prompts
    assert traffic.bytes_received == 2 * NUMBERS
    assert traffic.round_trips == 1
    assert torch.equal(ours, sent_as_float32(classifier, ids))


def test_float32_servers_get_float32_and_prompts_once(
    family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    classifier = swarm_client.classifier(family_swarms["llama"], make_tuned("deep_ptune"))
    ids, _ = batch()
    requests, tuned = requests_of(classifier), classifier.tuned
    ours = forward(requests, classifier.backbone.embedded(ids, tuned.prompts), tuned.deep_prompts)
    assert ours.isfinite().all()
    assert requests.traffic().bytes_sent == 4 * (NUMBERS + LAYERS * PROMPTS * HIDDEN)


def test_compression_applies_in_both_directions(
    family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    tuned, (ids, lengths) = make_tuned("ptune"), batch()
    exact = swarm_client.classifier(family_swarms["llama"], tuned).logits(ids, lengths)
    classifier = swarm_client.classifier(family_swarms["llama"], tuned, compression="float16")
    smaller = classifier.logits(ids, lengths)
    assert not torch.equal(smaller, exact)
    assert (smaller - exact).abs().max() < 0.01 * exact.abs().max()
    traffic = requests_of(classifier).traffic()
    assert traffic.bytes_sent == traffic.bytes_received == 2 * NUMBERS * 2


def test_what_has_16_bits_already_is_not_compressed(
    bfloat16_swarm: PrivateSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    tuned, (ids, lengths) = make_tuned("ptune"), batch()
    exact = swarm_client.classifier(bfloat16_swarm, tuned).logits(ids, lengths)
    assert torch.equal(
        swarm_client.classifier(bfloat16_swarm, tuned, compression="float16").logits(ids, lengths), exact
    )


def test_other_prompts_are_serialized_again(
    family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    first, second = make_tuned("deep_ptune", seed=1), make_tuned("deep_ptune", seed=2)
    assert first.deep_prompts is not None and second.deep_prompts is not None
    backbone = swarm_client.classifier(family_swarms["llama"], first).backbone
    ids, _ = batch()
    prompts = [SoftPrompts(first.prompts, deep) for deep in (first.deep_prompts, second.deep_prompts)]
    answers = [backbone.hidden_states(ids, some) for some in prompts]
    again = backbone.hidden_states(ids, prompts[0])
    assert not torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], again)


def test_ranks_of_a_host_know_what_the_others_have_measured(
    family_swarms: dict[str, PrivateSwarm],
    swarm_client: SwarmClient,
    make_tuned: Callable[..., TunedCheckpoint],
    tmp_path: Path,
) -> None:
    backbone = swarm_client.classifier(family_swarms["llama"], make_tuned(None)).backbone
    assert isinstance(backbone, SwarmBackbone)
    directory, config = backbone.requests.servers._directory, backbone.config
    one, other, apart = (
        SwarmRequests(directory, config, request_timeout=TIMEOUT, max_retries=2, router=Router(seed, shared))
        for seed, shared in enumerate((SharedStates(tmp_path), SharedStates(tmp_path), None))
    )
    forward(one, hidden_states(backbone, rows=2, length=10), None)
    peers = [span.peer for span in one.servers.spans()]
    speeds = [
        [requests.router.stats(peer).pacing.seconds_per_work for peer in peers] for requests in (one, other, apart)
    ]
    assert all(speeds[0]) and speeds[1] == speeds[0]
    assert not any(speeds[2])


@pytest.fixture(scope="module")
def replicas(tiny_models: dict[str, Path], swarm_client: SwarmClient) -> Iterator[ForkedSwarm]:
    with swarm_client.start(tiny_models["llama"], [(0, 4), (0, 4)], "mortal") as swarm:
        yield swarm


def test_requests_that_wait_in_line_are_answered_once(
    replicas: ForkedSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    classifier = swarm_client.classifier_on_all(replicas, make_tuned(None))
    requests, (ids, lengths) = requests_of(classifier), batch()
    before = classifier.logits(ids, lengths)
    asked = sum(server.requests for server in requests.router.servers.values())
    with ThreadPoolExecutor(16) as pool:
        for answer in pool.map(lambda _: classifier.logits(ids, lengths), range(48)):
            assert torch.equal(answer, before)
    assert sum(server.requests for server in requests.router.servers.values()) == asked + 48
    assert not requests.router.retries and not failures(requests)


def failures(requests: SwarmRequests) -> int:
    return sum(server.failures for server in requests.traffic().servers)


def is_banned(requests: SwarmRequests, span: Span) -> bool:
    return requests.router.stats(span.peer).is_banned(time.monotonic())


def hidden_states(backbone: SwarmBackbone, rows: int, length: int) -> torch.Tensor:
    ids = torch.randint(0, 100, (rows, length), generator=torch.Generator().manual_seed(4))
    return backbone.word_embeddings(ids)


def test_a_request_too_large_for_a_server_is_split_in_halves(
    replicas: ForkedSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    requests = requests_of(swarm_client.classifier_on_all(replicas, make_tuned(None)))
    hidden = hidden_states(swarm_client.backbones[-1], rows=30, length=100)  # servers accept 2048 tokens
    record = RouteRecord()
    whole = forward(requests, hidden, None, record=record)
    assert requests.halved == 1
    assert torch.equal(whole, torch.cat([forward(requests, half, None) for half in hidden.tensor_split(2)]))
    assert requests.router.retries == 0
    assert not any(is_banned(requests, span) for span in requests.servers.spans())
    assert {(start, end) for _, start, end, _ in record.route} == {(0, 4)}
    with pytest.raises(RefusedError, match=r"a text of 2100 tokens.*max_batch_size \(2048\).*--max-length"):
        forward(requests, hidden_states(swarm_client.backbones[-1], rows=2, length=2100), None)


def test_a_request_that_all_servers_refuse_is_an_error_and_bans_them_briefly(
    replicas: ForkedSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    classifier = swarm_client.classifier_on_all(replicas, make_tuned(None))
    requests, hidden = requests_of(classifier), hidden_states(classifier.backbone, rows=2, length=10)
    with pytest.raises(RefusedError, match=r"servers refused it, blocks 0:4 \(peer \w+\) and blocks 0:4 "):
        forward(requests, torch.cat([hidden, hidden], dim=2), None)
    assert requests.router.retries == 2
    later = time.monotonic() + 1.5
    assert not any(requests.router.stats(span.peer).is_banned(later) for span in requests.servers.spans())
    assert forward(requests, hidden, None).shape == hidden.shape


def test_non_finite_values_from_two_servers_are_not_counted_against_them(
    replicas: ForkedSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    classifier = swarm_client.classifier_on_all(replicas, make_tuned(None))
    requests, hidden = requests_of(classifier), hidden_states(classifier.backbone, rows=2, length=10)
    with pytest.raises(RefusedError, match=r"\(peer .* and .*: .*Received hidden states that are not finite"):
        forward(requests, torch.full_like(hidden, torch.nan), None)
    servers = requests.router.servers.values()
    assert [server.wrong_answers for server in servers] == [0] * len(servers)
    assert not any(server.is_banned(time.monotonic()) for server in servers)


@pytest.mark.slow
def test_a_hanging_replica_does_not_delay_requests(
    replicas: ForkedSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    options = {"request_timeout": TIMEOUT}
    classifier = swarm_client.classifier_on_all(replicas, make_tuned("deep_ptune"), **options)
    requests, (ids, lengths) = requests_of(classifier), batch()
    before = classifier.logits(ids, lengths)
    for _ in range(20):  # the usual latency is known by then: the first one, of a new connection, can be seconds
        classifier.logits(ids, lengths)
    assert len(requests.router.servers) == 2
    hanging = replicas.group(1)
    os.killpg(hanging, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            while not requests.router.retries:  # until it was asked
                for answer in pool.map(lambda _: classifier.logits(ids, lengths), range(16)):
                    assert torch.equal(answer, before)
                assert time.monotonic() - start < TIMEOUT / 2
    finally:
        os.killpg(hanging, signal.SIGCONT)


def test_replicas_that_are_all_busy_are_given_more_time(
    replicas: ForkedSwarm,
    swarm_client: SwarmClient,
    make_tuned: Callable[..., TunedCheckpoint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "_MIN_STALL_SECONDS", 2.0)
    options = {"request_timeout": TIMEOUT, "max_retries": 1}
    classifier = swarm_client.classifier_on_all(replicas, make_tuned("deep_ptune"), **options)
    before = [classifier.logits(*batch()) for _ in range(20)][-1]
    groups = [replicas.group(number) for number in range(2)]
    for group in groups:
        os.killpg(group, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(classifier.logits, *batch())
            assert wait_for(lambda: requests_of(classifier).router.retries == 1)
            time.sleep(3.0)  # the second attempt has not given up yet
            for group in groups:
                os.killpg(group, signal.SIGCONT)
            assert torch.equal(answer.result(TIMEOUT), before)
    finally:
        for group in groups:
            os.killpg(group, signal.SIGCONT)


def test_the_death_of_this_ranks_node_is_reported(
    replicas: ForkedSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    dht = join_swarm(replicas.initial_peers, TIMEOUT)
    options = {"request_timeout": 5.0, "max_retries": 4, "dht_prefix": replicas.dht_prefix}
    backbone = load_swarm_backbone(replicas.model, dht, **options)
    classifier = with_tuned_head(backbone, replicas.model, make_tuned(None))
    try:
        os.kill(dht.pid, signal.SIGKILL)  # as by the kernel when memory runs out
        dht.join(TIMEOUT)
        with pytest.raises(SwarmError, match=rf"hivemind node of this rank \(process {dht.pid}\) .* status -9"):
            classifier.logits(*batch())
    finally:
        classifier.close()


def test_no_more_tokens_are_sent_in_a_second_than_allowed(
    family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    ids, lengths = batch()
    classifier = swarm_client.classifier(family_swarms["llama"], make_tuned(None), tokens_per_second=ids.numel() / 0.2)
    start = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(lambda _: classifier.logits(ids, lengths), range(4)))) == 4
    assert time.monotonic() - start > 3 * 0.2


def test_a_request_that_is_split_counts_once_for_the_limit(
    replicas: ForkedSwarm,
    swarm_client: SwarmClient,
    make_tuned: Callable[..., TunedCheckpoint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = requests_of(swarm_client.classifier_on_all(replicas, make_tuned(None)))
    counted, wait = list[int](), requests.rate_limiter.wait

    async def counting(tokens: int, **_: bool) -> None:
        counted.append(tokens)
        await wait(tokens)

    monkeypatch.setattr(requests.rate_limiter, "wait", counting)
    forward(requests, hidden_states(swarm_client.backbones[-1], rows=30, length=100), None)
    assert (requests.halved, counted) == (1, [3000])


def test_killed_replicas_cost_retries_and_missing_blocks_are_waited_for(
    replicas: ForkedSwarm, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> None:
    swarm, (ids, lengths) = replicas, batch()
    options = {"request_timeout": 20.0, "max_retries": 4, "outage_timeout": 4.0}
    classifier = swarm_client.classifier_on_all(swarm, make_tuned("deep_ptune"), **options)
    requests = requests_of(classifier)
    before = classifier.logits(ids, lengths)
    for _ in range(5):
        assert torch.equal(classifier.logits(ids, lengths), before)
    assert (requests.router.retries, len(requests.router.servers)) == (0, 2)
    failures_before = failures(requests)

    peers = swarm.peers
    servers = {str(peer): server for peer, server in requests.router.servers.items()}
    speeds = {peer: server.pacing.seconds_per_work or 0.0 for peer, server in servers.items()}
    first, other = sorted((0, 1), key=lambda number: speeds[peers[number]])  # requests prefer the faster one
    swarm.kill_server(first)
    with pytest.raises(SwarmError, match=rf"Server {first} .*was ended by SIGKILL"):
        swarm.require_alive()
    gc.collect()
    gc.disable()
    try:
        with ThreadPoolExecutor(16) as pool:
            for answer in pool.map(lambda _: classifier.logits(ids, lengths), range(16)):
                assert torch.equal(answer, before)
        assert servers[peers[first]].failures, "the dead server was asked"
        assert failures(requests) - failures_before == requests.router.retries
        activations = (ROWS, LENGTH + PROMPTS, HIDDEN)
        assert not [kept for kept in gc.get_objects() if isinstance(kept, torch.Tensor) and kept.shape == activations]
    finally:
        gc.enable()

    swarm.kill_server(other)
    start = time.monotonic()
    with pytest.raises(OutageError, match=r"for 4 s \(--swarm-timeout\) .* no server to reach for block.* 0"):
        classifier.logits(ids, lengths)
    assert 4.0 < time.monotonic() - start < TIMEOUT / 2
    assert "no server to reach for block" in requests.servers.notice()
    assert requests.servers.notice() == "", "notices are rate-limited"

    requests.servers.outage_timeout = TIMEOUT
    addresses = list(swarm.addresses)
    requests.servers.rejoin = functools.partial(rejoin_swarm, classifier.backbone.dht, [addresses[other]])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(classifier.logits, ids, lengths)
        assert wait_for(lambda: "no server to reach for block" in requests.servers.notice())
        swarm.start_server(other)
        assert torch.equal(answer.result(TIMEOUT), before)
    assert swarm.addresses == addresses
