"""What sessions take of servers' memory: what is counted is what is kept, announced, admitted, and given back."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from conftest import ForkedSwarm, Launcher, SwarmClient, wait_for
from tiny_models import DECODERS, LAYERS, make_tiny_model, random_checkpoint, save_tiny_models
from transformers.cache_utils import DynamicCache

from dist_eval.errors import NoCacheError, RefusedError
from dist_eval.model.backbone import SoftPrompts
from dist_eval.model.swarm_backbone import SwarmBackbone
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.client.coverage import look_up_coverage
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.server.session_cache import block_caches

ROWS, LENGTH, WINDOW = 3, 40, 16
CACHE_TOKENS = 600
POSITIONS = 2048


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_counted_for_a_session_is_what_transformers_keeps(name: str) -> None:
    model = make_tiny_model(name)
    architecture = Architecture(model.config)
    counted = block_caches(architecture)
    if None in counted:
        assert not architecture.has_attention_cache, "it has recurrent layers, and no sessions"
        return
    cache = DynamicCache(config=architecture.config)
    with torch.no_grad():
        model(torch.randint(0, 100, (ROWS, LENGTH)), cache=cache)
    kept = [[tuple(layer.keys.shape), tuple(layer.values.shape)] for layer in cache.layers]
    assert [block.shapes(ROWS, LENGTH, rolls_back=False) for block in counted if block] == kept
    for block in filter(None, counted):
        whole = sum(torch.Size(shape).numel() for shape in block.shapes(ROWS, LENGTH, rolls_back=True))
        assert whole == ROWS * LENGTH * block.token_numbers


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory, swarm_client: SwarmClient) -> Iterator[ForkedSwarm]:
    """One server for a model whose heads are wider than Petals would take them for, half of them with a window."""
    folder = save_tiny_models(tmp_path_factory.mktemp("models"), "gemma2")["gemma2"]
    with swarm_client.start(folder, [(0, LAYERS)], "gemma2", cache_tokens=CACHE_TOKENS) as swarm:
        yield swarm


@pytest.fixture
def backbone(swarm: ForkedSwarm, swarm_client: SwarmClient) -> SwarmBackbone:
    backbone = swarm_client.backbone(swarm, max_retries=0)
    assert wait_for(lambda: free(backbone) == CACHE_TOKENS * LAYERS)
    return backbone


def free(backbone: SwarmBackbone) -> int:
    (left,) = backbone.requests.servers.free_cache().values()
    return left


def test_what_is_announced_is_admitted_and_no_token_more(backbone: SwarmBackbone) -> None:
    ids = torch.ones(ROWS, 1, dtype=torch.int64)

    def announced() -> int | None:
        (server,) = look_up_coverage(backbone.dht, "gemma2", LAYERS).servers
        return server.free_cache

    assert wait_for(lambda: announced() == CACHE_TOKENS)  # a server announces it again after a minute
    with closing(backbone.session(ROWS, CACHE_TOKENS // ROWS)) as session:
        session.step(ids)
        assert free(backbone) == 0
    assert wait_for(lambda: free(backbone) == CACHE_TOKENS * LAYERS)
    with (
        closing(backbone.session(ROWS, CACHE_TOKENS // ROWS + 1)) as session,
        pytest.raises(NoCacheError, match="max cache size") as caught,
    ):
        session.step(ids)
    assert not caught.value.transient, "there will never be as much"


def test_texts_that_only_grow_take_no_more_than_their_windows(backbone: SwarmBackbone) -> None:
    ids = torch.randint(0, 100, (1, CACHE_TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = backbone.hidden_states(ids)
    with closing(backbone.session(1, CACHE_TOKENS, rolls_back=False)) as session:
        steps = [session.step(piece) for piece in ids.split([9, 1, 30, 1, 1, 558], dim=1)]
        half = LAYERS // 2
        assert free(backbone) == CACHE_TOKENS * LAYERS - half * CACHE_TOKENS - half * (WINDOW - 1)
        torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=2e-5, rtol=0)
        again = session.step(ids[:, 100:300], start=100)  # sent from the beginning
        torch.testing.assert_close(again, whole[:, 100:300], atol=2e-5, rtol=0)


def test_a_session_may_be_as_long_as_the_model_has_positions_for(backbone: SwarmBackbone) -> None:
    ids = torch.ones(1, 1, dtype=torch.int64)
    with (
        closing(backbone.session(1, POSITIONS + 1)) as session,
        pytest.raises(NoCacheError, match=f"for {POSITIONS + 1} tokens, max = {POSITIONS}$") as caught,
    ):
        session.step(ids)
    assert not caught.value.transient


def test_a_text_that_is_too_long_for_a_request_takes_several(swarm: ForkedSwarm, swarm_client: SwarmClient) -> None:
    plain, backbone = (swarm_client.backbone(swarm, max_retries=0, request_tokens=tokens) for tokens in (None, 50))
    tuned = random_checkpoint("deep_ptune")
    prompts = SoftPrompts(tuned.prompts, tuned.deep_prompts)
    everything, before = free(backbone), backbone.requests.traffic().round_trips
    ids, route = torch.randint(0, 100, (2, 300), generator=torch.Generator().manual_seed(1)), RouteRecord()
    with torch.no_grad():
        whole = plain.hidden_states(ids, prompts)
        found = backbone.hidden_states(ids, prompts, record=route)
        torch.testing.assert_close(found, whole, atol=5e-5, rtol=0)
        assert backbone.requests.traffic().round_trips - before == 2, "a session for each text"
        assert [(segment.start, segment.end) for segment in route.route] == [(0, LAYERS)] * 2
        assert wait_for(lambda: free(backbone) == everything)
        assert torch.equal(backbone.hidden_states(ids[:, :50]), plain.hidden_states(ids[:, :50]))
        with pytest.raises(RefusedError, match=r"a text of 1500 tokens.* --cache-tokens 1500 or more") as caught:
            backbone.hidden_states(torch.ones(1, 1500, dtype=torch.int64))
    assert not caught.value.transient


CLIENT = """import sys
from pathlib import Path
import torch
from dist_eval.model.swarm_backbone import load_swarm_backbone
from dist_eval.petals.client.client import join_swarm
from dist_eval.petals.client.hivemind_compat import prepare_hivemind

model, prefix, sockets, *peers = sys.argv[1:]
prepare_hivemind(sockets=Path(sockets))
backbone = load_swarm_backbone(model, join_swarm(peers, 60), dht_prefix=prefix, request_timeout=60, max_retries=4)
backbone.session(3, 40).step(torch.ones(3, 8, dtype=torch.int64))
print("open", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_client_held_comes_back(backbone: SwarmBackbone, swarm: ForkedSwarm, launcher: Launcher) -> None:
    everything = free(backbone)
    arguments = (swarm.model, swarm.dht_prefix, str(launcher.temporary), *swarm.initial_peers)
    with launcher.start("-c", CLIENT, *arguments, preloaded=True, stdin=subprocess.PIPE) as client:
        assert client.stdout is not None and client.stderr is not None
        assert client.stdout.readline() == "open\n", client.stderr.read()
        assert free(backbone) == everything - ROWS * LENGTH * LAYERS
        os.kill(client.pid, signal.SIGKILL)
    assert wait_for(lambda: free(backbone) == everything)
