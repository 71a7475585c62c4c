"""Chains of three servers, each with replicas, while servers are killed, frozen, cut off, or lie."""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dishonest_server
import pytest
import torch
from conftest import ForkedSwarm, SwarmClient, requests_of, wait_for_servers
from dishonest_server import MIRRORED
from tiny_models import LAYERS, VOCABULARY, random_checkpoint

from benchmarks.delay_proxy import DelayProxy
from dist_eval.evaluation.audit import AuditedModel
from dist_eval.inference.models import SendOptions
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.process.ports import free_ports

pytestmark = pytest.mark.slow

SPANS = [(0, 1)] * 2 + [(1, 3)] * 3 + [(3, LAYERS)] * 2
PARTS = range(2), range(2, 5), range(5, 7)
"""Servers of the same blocks."""

LIAR, CUT_OFF = 3, 6
"""Servers that lie when they are told to, and whose port can be closed."""

IN_FLIGHT, BATCHES, AFTER_EACH = 3, 8, 12
AUDITED = SendOptions(audited=True)


class FaultySwarm(ForkedSwarm):
    """A swarm whose servers are disturbed one at a time; each disturbance returns what ends it."""

    def kill(self, number: int) -> Callable[[], object]:
        self.kill_server(number)
        return lambda: self.start_server(number)

    def freeze(self, number: int) -> Callable[[], object]:
        group = self.group(number)
        os.killpg(group, signal.SIGSTOP)
        return lambda: os.killpg(group, signal.SIGCONT)

    def lie(self, number: int) -> Callable[[], object]:
        (self.folder / f"lie-{number}").write_text(MIRRORED)
        return (self.folder / f"lie-{number}").unlink


@pytest.fixture
def ports() -> list[tuple[int, int]]:
    """The port that each server listens on, and the one that it announces."""
    own = free_ports("127.0.0.1", len(SPANS) + 1)
    return [(port, own[-1] if number == CUT_OFF else port) for number, port in enumerate(own[:-1])]


@pytest.fixture
def proxy(ports: list[tuple[int, int]]) -> Iterator[DelayProxy]:
    listening, announced = ports[CUT_OFF]
    with DelayProxy([(announced, listening)]) as proxy:
        yield proxy


@pytest.fixture
def swarm(
    tiny_models: dict[str, Path], swarm_client: SwarmClient, ports: list[tuple[int, int]], proxy: DelayProxy
) -> Iterator[FaultySwarm]:
    options = {"num_blocks": LAYERS, "ports": ports, "programs": {LIAR: dishonest_server.__file__}}
    swarm = FaultySwarm(str(tiny_models["llama"]), dht_prefix="faulty", spans=SPANS, threads=1, **options)
    with swarm_client.visiting(swarm):
        yield swarm


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randint(0, VOCABULARY, (4, length), generator=generator), torch.full((4,), length))
        for length in range(8, 8 + BATCHES)
    ]


def test_whatever_happens_to_one_server_nothing_is_lost_and_only_the_liar_is_excluded(
    swarm: FaultySwarm, swarm_client: SwarmClient, proxy: DelayProxy
) -> None:
    tuned, chance, excluded = random_checkpoint("deep_ptune"), random.Random(0), list[str]()
    classifier = swarm_client.classifier_on_all(swarm, tuned, request_timeout=30.0)
    by_server = swarm_client.classifier(swarm, tuned, chains=False)
    expected = [by_server.logits(*batch) for batch in batches()]
    requests, audited, numbers = requests_of(classifier), AuditedModel(classifier, excluded.append), itertools.count()

    def answer_one(_: object = None) -> None:
        number, record = next(numbers) % BATCHES, RouteRecord()
        logits = audited.answer(*batches()[number], AUDITED, record)["logits"]
        assert torch.equal(logits, expected[number]), record
        assert [block for part in record.route for block in range(part.start, part.end)] == [*range(LAYERS)]

    def lie(number: int) -> Callable[[], object]:
        for span in requests.servers.spans():
            if span.start == SPANS[number][0] and str(span.peer) != swarm.peers[number]:
                requests.router.stats(span.peer).pacing.add_steps(10**9)  # so that the liar is asked
        return swarm.lie(number)

    def cut_off(number: int) -> Callable[[], object]:
        proxy.__exit__(None, None, None)
        return proxy.__enter__

    schedule = [(chance.choice(part), how) for part in PARTS for how in (swarm.kill, swarm.freeze)]
    schedule += [(CUT_OFF, cut_off), (LIAR, lie)]
    chance.shuffle(schedule)
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        for number, disturb in schedule:
            under_way = [pool.submit(answer_one) for _ in range(IN_FLIGHT)]
            restore = disturb(number)
            try:
                assert len([*pool.map(answer_one, range(AFTER_EACH))]) == AFTER_EACH
                assert all(one.result() is None for one in under_way)
            finally:
                restore()
            assert excluded == [swarm.peers[LIAR]] * (disturb == lie or bool(excluded))
            wait_for_servers(classifier, len(SPANS) - len(excluded))
    assert excluded
    disturbed = {swarm.peers[number] for number, _ in schedule}
    assert {server.peer for server in requests.traffic().servers if server.failures} <= disturbed
