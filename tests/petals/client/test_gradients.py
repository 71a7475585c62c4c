"""Gradients through real servers equal those of a local model, also when servers die during the backward."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import FAMILIES, ForkedSwarm, SwarmClient, requests_of, wait_for
from tiny_models import HIDDEN, LAYERS

from dist_eval.errors import EvaluationError
from dist_eval.model.backbone import SoftPrompts
from dist_eval.model.classifier import Classifier, load_locally
from dist_eval.petals.client.transport import Transport
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server.private import PrivateSwarm

MakeTuned = Callable[..., TunedCheckpoint]


@pytest.fixture(scope="module")
def killable_swarm(tiny_models: dict[str, Path], swarm_client: SwarmClient) -> Iterator[ForkedSwarm]:
    """A server with all blocks, and two with a half each."""
    with swarm_client.start(tiny_models["llama"], [(0, 4), (0, 2), (2, 4)], "mortal-gradients") as swarm:
        yield swarm


def batch(rows: int = 4, length: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 100, (rows, length), generator=torch.Generator().manual_seed(3))
    return ids, torch.arange(rows) % length + 1


def gradients(classifier: Classifier, tuned: TunedCheckpoint, rows: int = 4, length: int = 9) -> list[torch.Tensor]:
    """Gradients of a weighted sum of all outputs with respect to head, prompts and deep prompts."""
    tensors = {name: getattr(tuned, name) for name in ("head", "prompts", "deep_prompts")}
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items() if tensor is not None}
    scores = Classifier(classifier.backbone, replace(tuned, **leaves)).scores(*batch(rows, length))
    weights = torch.linspace(-1, 1, scores.numel()).view_as(scores)
    return list(torch.autograd.grad((scores * weights).sum(), list(leaves.values())))


def close_to_local(found: list[torch.Tensor], local: list[torch.Tensor]) -> None:
    for ours, theirs in zip(found, local, strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["ptune", "deep_ptune"])
def test_gradients_are_those_of_the_local_model(
    family: str,
    mode: str,
    tiny_models: dict[str, Path],
    family_swarms: dict[str, PrivateSwarm],
    swarm_client: SwarmClient,
    make_tuned: MakeTuned,
) -> None:
    tuned = make_tuned(mode, model_type=family)
    remote = swarm_client.classifier(family_swarms[family], tuned)
    close_to_local(gradients(remote, tuned), gradients(load_locally(str(tiny_models[family]), tuned), tuned))


def test_gradients_that_take_the_streaming_path(
    tiny_models: dict[str, Path],
    family_swarms: dict[str, PrivateSwarm],
    swarm_client: SwarmClient,
    make_tuned: MakeTuned,
) -> None:
    tuned = make_tuned("deep_ptune", hidden=512, layers=1)
    remote = swarm_client.classifier(family_swarms["wide"], tuned)  # 8 x (5 + 123) tokens of 512 float32: 2 MiB
    local = load_locally(str(tiny_models["wide"]), tuned)
    close_to_local(gradients(remote, tuned, 8, 123), gradients(local, tuned, 8, 123))


def test_prompts_are_sent_once_per_request_and_serialized_again_after_a_change(
    family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient, make_tuned: MakeTuned
) -> None:
    tuned = make_tuned("deep_ptune")
    assert tuned.deep_prompts is not None and tuned.prompts is not None
    classifier = swarm_client.classifier(family_swarms["llama"], tuned)
    deep = tuned.deep_prompts.clone().requires_grad_()
    ids, _ = batch()
    first = classifier.backbone.hidden_states(ids, SoftPrompts(tuned.prompts, deep))
    numbers, prompts = ids.shape[0] * (5 + ids.shape[1]) * HIDDEN, LAYERS * 5 * HIDDEN
    assert requests_of(classifier).traffic().bytes_sent == 4 * (2 * numbers + prompts)
    with torch.no_grad():
        deep.add_(1.0)
    second = classifier.backbone.hidden_states(ids, SoftPrompts(tuned.prompts, deep))
    assert not torch.equal(first, second)
    with torch.no_grad():
        assert torch.equal(
            second, classifier.backbone.hidden_states(ids, SoftPrompts(tuned.prompts, deep.detach().clone()))
        )


def test_requests_too_large_for_servers_are_split_in_halves(
    tiny_models: dict[str, Path], killable_swarm: ForkedSwarm, swarm_client: SwarmClient, make_tuned: MakeTuned
) -> None:
    tuned = make_tuned("deep_ptune")
    remote = swarm_client.classifier_on_all(killable_swarm, tuned)
    found = gradients(remote, tuned, 24, 100)  # 24 x (5 + 100) tokens: servers accept 2048
    assert requests_of(remote).halved == 1
    close_to_local(found, gradients(load_locally(str(tiny_models["llama"]), tuned), tuned, 24, 100))


def test_a_server_killed_during_the_backward_only_costs_time(
    tiny_models: dict[str, Path],
    killable_swarm: ForkedSwarm,
    swarm_client: SwarmClient,
    make_tuned: MakeTuned,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only servers with half of the blocks remain."""
    tuned = make_tuned("deep_ptune")
    remote = swarm_client.classifier_on_all(killable_swarm, tuned, request_timeout=20.0, max_retries=2)
    requests = requests_of(remote)
    local = gradients(load_locally(str(tiny_models["llama"]), tuned), tuned)
    [whole, *halves] = (address.rpartition("/p2p/")[2] for address in killable_swarm.addresses)
    original, endings = Transport.send_back, []

    async def while_it_dies(self: Transport, segment, *further):  # type: ignore[no-untyped-def]
        if str(segment.peer) == whole and not endings:
            os.killpg(killable_swarm.group(0), signal.SIGSTOP)  # it has got the request, and cannot answer
            endings.append(ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.3), killable_swarm.kill_server(0))))
        return await original(self, segment, *further)

    monkeypatch.setattr(Transport, "send_back", while_it_dies)
    while not endings:  # until a backward went to the server with all blocks
        close_to_local(gradients(remote, tuned), local)
    endings[0].result()
    assert requests.router.retries >= 1
    assert {*halves} <= {server.peer for server in requests.traffic().servers}


def test_retries_of_a_backward_are_bounded(
    family_swarms: dict[str, PrivateSwarm],
    swarm_client: SwarmClient,
    make_tuned: MakeTuned,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuned, sent = make_tuned("ptune"), []

    async def nonsense(self: Transport, segment, inputs, gradient, deep):  # type: ignore[no-untyped-def]
        sent.append(segment)
        return await original(self, segment, inputs, torch.full_like(gradient, torch.nan), deep)

    original = Transport.send_back
    monkeypatch.setattr(Transport, "send_back", nonsense)
    classifier = swarm_client.classifier(family_swarms["llama"], tuned, max_retries=1)
    with pytest.raises(EvaluationError, match="that are not finite"):
        gradients(classifier, tuned)
    assert len(sent) == 2
    assert wait_for(lambda: not requests_of(classifier).servers.notice())
