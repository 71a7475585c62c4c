"""A private swarm: which blocks its servers hold, and what is wrong with its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ForkedSwarm, wait_for
from hypothesis import given
from hypothesis import strategies as st

from dist_eval import demo
from dist_eval.errors import CheckpointError, ConfigError, SwarmError
from dist_eval.petals.server.private import PrivateSwarm, split_blocks


@given(st.integers(1, 200), st.data())
def test_blocks_are_split_evenly_and_completely(blocks: int, data: st.DataObject) -> None:
    servers = data.draw(st.integers(1, blocks))
    spans = split_blocks(blocks, servers)
    assert [block for start, end in spans for block in range(start, end)] == list(range(blocks))
    sizes = [end - start for start, end in spans]
    assert len(sizes) == servers
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("servers", [0, 5])
def test_more_servers_than_blocks_are_refused(servers: int) -> None:
    with pytest.raises(ConfigError, match="--servers 1 to 4"):
        split_blocks(4, servers)


@pytest.mark.parametrize("span", [(0, 5), (2, 2), (-1, 2)])
def test_spans_outside_the_model_are_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"{span[0]}:{span[1]} of a model with 4 blocks"):
        PrivateSwarm("model", num_blocks=4, dht_prefix="m", spans=[span])


def test_a_server_that_cannot_start_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16}')
    with ForkedSwarm(str(tmp_path), num_blocks=2, dht_prefix="broken", spans=[(0, 2)]) as swarm:
        assert wait_for(lambda: swarm.servers[0].poll() is not None)
        with pytest.raises(SwarmError, match=r"Server 0 .*blocks 0:2.* ended with status 1: \w*Error"):
            swarm.require_alive()


def test_blocks_and_name_are_those_of_the_model_and_one_server_has_all() -> None:
    swarm = PrivateSwarm(demo.BASE_MODEL)
    assert (swarm.num_blocks, swarm.dht_prefix, swarm.spans) == (4, "base", [(0, 4)])
    with pytest.raises(ConfigError, match="The private swarm is not running"):
        assert swarm.initial_peers
    with pytest.raises(CheckpointError, match="/nowhere"):
        PrivateSwarm("/nowhere")
