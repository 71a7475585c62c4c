"""Servers that answer forwards and backwards like Petals, but whose sessions are others: they never get one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import bloombee_server
import pytest
import torch
from conftest import ForkedSwarm, SwarmClient
from tiny_models import random_checkpoint

from dist_eval.model.backbone import SoftPrompts, load_local_backbone
from dist_eval.petals.client.gradients import through_swarm
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.client.session_room import NO_ROOM

ROWS, LENGTH = 2, 12


@pytest.fixture(scope="module")
def swarm(tiny_models: dict[str, Path], swarm_client: SwarmClient) -> Iterator[ForkedSwarm]:
    """A swarm whose first server, which has all blocks, is such a one."""
    programs = {0: bloombee_server.__file__}
    with swarm_client.start(tiny_models["llama"], [(0, 4), (0, 4)], "bees", programs=programs) as swarm:
        yield swarm


def was_opened(swarm: ForkedSwarm) -> bool:
    return (swarm.folder / bloombee_server.OPENED).exists()


def pieces() -> tuple[torch.Tensor, ...]:
    ids = torch.randint(0, 100, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))
    return ids.split([7, 1, 4], dim=1)


@pytest.mark.slow
def test_sessions_go_to_another_server(
    swarm: ForkedSwarm, swarm_client: SwarmClient, tiny_models: dict[str, Path]
) -> None:
    backbone, local = swarm_client.backbone(swarm), load_local_backbone(str(tiny_models["llama"]))
    tuned, route = random_checkpoint("deep_ptune"), RouteRecord()
    prompts = SoftPrompts(tuned.prompts, tuned.deep_prompts)
    with torch.no_grad():
        expected = local.hidden_states(torch.cat(pieces(), dim=1), prompts)[:, -LENGTH:]
    with closing(backbone.session(ROWS, LENGTH, prompts)) as session:
        found = torch.cat([session.step(piece, record=route) for piece in pieces()], dim=1)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    assert {segment.peer for segment in route.route} == {*swarm.peers[1:]}
    assert {str(span.peer): left > 0 for span, left in backbone.requests.servers.free_cache().items()} == {
        peer: number > 0 for number, peer in enumerate(swarm.peers)
    }
    assert not was_opened(swarm)


@pytest.mark.slow
def test_without_another_server_texts_are_sent_in_forwards(
    swarm: ForkedSwarm, swarm_client: SwarmClient, tiny_models: dict[str, Path]
) -> None:
    backbone, local = swarm_client.backbone(swarm), load_local_backbone(str(tiny_models["llama"]))
    backbone.requests.servers.excluded = {*swarm.peers[1:]}
    assert backbone.room_for_sessions(1.0, LENGTH) == NO_ROOM
    route = RouteRecord()
    with torch.no_grad():
        expected = local.hidden_states(torch.cat(pieces(), dim=1))
    with closing(backbone.session(ROWS, LENGTH)) as session:
        found = torch.cat([session.step(piece, record=route) for piece in pieces()], dim=1)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    assert {segment.peer for segment in route.route} == {swarm.peers[0]}

    hidden = backbone.embedded(torch.cat(pieces(), dim=1), None).detach().requires_grad_()
    [outputs] = through_swarm(backbone.requests, [hidden], None)
    assert torch.autograd.grad(outputs.sum(), hidden)[0].isfinite().all()
    assert not was_opened(swarm)
