"""Requests that servers pass on: the same bits as server by server, and whatever fails, the client goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import ForkedSwarm, SwarmClient, requests_of
from tiny_models import HIDDEN, LAYERS, VOCABULARY, random_checkpoint

from dist_eval.swarm.requests import SwarmRequests
from dist_eval.swarm.routes import RouteRecord

SPANS = [(0, 1), (1, 3), (3, LAYERS)]
ROWS, LENGTH, PROMPTS = 6, 20, 5
LENGTHS = torch.tensor([20, 19, 12, 7, 3, 1])


def ids_of(rows: int = ROWS, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def swarm(
    request: pytest.FixtureRequest, tiny_models: dict[str, Path], swarm_client: SwarmClient
) -> Iterator[ForkedSwarm]:
    swarm = ForkedSwarm(
        str(tiny_models["llama"]),
        num_blocks=LAYERS,
        dht_prefix=f"chain-{request.param}",
        spans=SPANS,
        torch_dtype=request.param,
        threads=1,
        echo=True,
    )
    with swarm_client.visiting(swarm):
        yield swarm


def hop_by_hop(requests: SwarmRequests) -> SwarmRequests:
    requests._chains = False
    return requests


@pytest.mark.parametrize("mode", ["ptune", "deep_ptune"])
def test_a_chain_with_ids_and_rows_has_the_bits_of_server_by_server(
    swarm: ForkedSwarm, swarm_client: SwarmClient, mode: str
) -> None:
    tuned = random_checkpoint(mode)
    chained, plain = (swarm_client.classifier(swarm, tuned) for _ in range(2))
    hop_by_hop(requests_of(plain))
    by_chain, by_server = RouteRecord(), RouteRecord()
    found = chained.answer(ids_of(), LENGTHS, record=by_chain)["logits"]
    assert torch.equal(found, plain.answer(ids_of(), LENGTHS, record=by_server)["logits"])
    assert [(part.start, part.end) for part in by_chain.route] == SPANS
    assert by_chain.route == by_server.route
    traffic = requests_of(chained).traffic()
    assert traffic.round_trips == 1
    assert traffic.bytes_received == ROWS * HIDDEN * (2 if "bfloat16" in swarm.dht_prefix else 4)
