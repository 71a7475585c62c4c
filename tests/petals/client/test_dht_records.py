"""What is in a swarm's DHT."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from conftest import Launcher, SwarmClient, results_of, run_here
from foreign_records import anything, attack, peer_id, records, store
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval import demo
from dist_eval.petals.client.dht_records import (
    SafeSerializer,
    _entries,
    is_peer_id,
    plausible_models,
    plausible_servers,
)
from dist_eval.petals.server.private import PrivateSwarm

A, B = peer_id(1), peer_id(2)


def record(state: int, *blocks: int) -> Any:
    return [state, 1.0, dict(zip(("start_block", "end_block"), blocks, strict=False))]


@pytest.mark.parametrize(
    ("found", "spans"),
    [
        (
            [{A: record(2, 0, 2)}, {A: record(2, 0, 2)}, {B: record(2, 2, 3)}],
            [(A, 0, 2, "online"), (B, 2, 3, "online")],
        ),
        ([{A: record(2)}, {A: record(2)}, {}], [(A, 0, 2, "online")]),
        ([{A: record(2)}, {}, {A: record(2)}], [(A, 0, 1, "online")]),
        ([{A: record(0, 0, 1)}, {A: record(1, 1, 3)}, {A: record(2, 1, 3)}], [(A, 1, 3, "online")]),
        ([{A: record(1)}, {A: record(2)}, {A: record(1)}], [(A, 1, 2, "online")]),
        ([{A: record(2, 0, 80)}, {}, {}], [(A, 0, 3, "online")]),
        ([{A: record(2, 1, 3)}, {}, {}], []),
    ],
    ids=["two servers", "without their blocks", "with a gap", "moved", "starting", "of a longer model", "elsewhere"],
)
def test_records_are_joined_to_the_blocks_of_servers(
    found: list[dict[str, Any]], spans: list[tuple[str, int, int, str]]
) -> None:
    joined = plausible_servers([list(block.items()) for block in found]).spans()
    assert [(span.peer, span.start, span.end, span.server.state) for span in joined] == spans


def test_the_oldest_records_are_kept_if_there_are_too_many() -> None:
    found = plausible_servers([[(peer_id(number), record(2)) for number in range(3000)]])
    assert list(found.blocks[0]) == [peer_id(number) for number in range(500)]
    assert found.dropped == {"more than 500 servers announce a block": 2500}
    assert plausible_models([(f"model-{number}", {"num_blocks": 4}) for number in range(99)]).dropped.total() == 49


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Qm",
        "../" + A,
        A + "\n",
        A[:-1],
        "Q" * 46,
        "1" * 46,
        A.replace("Q", "0", 1),
        "A" * 300,
        17,
        None,
        b"Qm",
        ("a",),
    ],
)
def test_other_subkeys_are_no_peer_ids(text: Any) -> None:
    assert is_peer_id(A)
    assert is_peer_id("12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN")
    assert not is_peer_id(text)


items = st.lists(
    st.tuples(st.sampled_from([A, B]) | anything, st.binary() | records.map(msgpack.packb) | anything, anything),
    max_size=6,
)


@settings(max_examples=30)  # each of up to 24 records
@given(st.lists(items, min_size=1, max_size=4))
def test_whatever_a_node_answers_is_read_as_bounded_and_typed_spans(answers: list[Any]) -> None:
    found = []
    for block in answers:
        packed = msgpack.packb(msgpack.ExtType(0x50, msgpack.packb([None, 1.0, block])))
        dictionary = SafeSerializer.loads(packed)
        values = [] if dictionary is None else list(dictionary.data.items())
        found.append([(subkey, SafeSerializer.loads(item.value)) for subkey, item in values])
    servers = plausible_servers(found)
    kept = sum(map(len, servers.blocks))
    assert kept + servers.dropped.total() == sum(map(len, found))
    spans = servers.spans()
    assert len({span.peer for span in spans}) == len(spans)
    assert all(0 <= span.start < span.end <= len(answers) and is_peer_id(span.peer) for span in spans)


@given(st.binary() | anything.map(msgpack.packb))
def test_any_bytes_are_decoded_or_dropped(packed: bytes) -> None:
    SafeSerializer.loads(packed)
    plausible_servers([[(A, SafeSerializer.loads(packed))]])


@pytest.mark.parametrize("value", [5, {}, {"a": 1}])
def test_a_value_without_subkeys_is_dropped(value: Any) -> None:
    from hivemind.utils.timed_storage import ValueWithExpiration

    assert plausible_models(_entries(ValueWithExpiration(value, 1.0))) == (
        {},
        {"a model's name is empty, too long, or not printable text": 1},
    )


@pytest.fixture(scope="module")
def attacked_swarm(swarm_client: SwarmClient) -> Iterator[PrivateSwarm]:
    """A server of the demo's base model, beside whose records a stranger has stored others."""
    with swarm_client.start(demo.BASE_MODEL, [(0, 4)], demo.BASE_MODEL.name) as swarm:
        stored = swarm_client.join(swarm).run_coroutine(functools.partial(store, attack(swarm.dht_prefix)))
        assert stored and all(stored)
        yield swarm


def test_a_run_and_the_status_of_a_swarm_survive_foreign_records(
    attacked_swarm: PrivateSwarm, launcher: Launcher, tmp_path: Path
) -> None:
    peers = attacked_swarm.initial_peers
    status = launcher.run("-m", "dist_eval.petals", "status", "--initial-peers", *peers)
    assert (status.returncode, status.stderr) == (0, "")
    assert "base: 4 blocks, 1 server\n" in status.stdout
    assert "dropped, because they are implausible: 11 records: " in status.stdout
    assert "dropped, because they are implausible: 3 models: " in status.stdout
    assert "\x1b" not in status.stdout
    options = ["--checkpoint", str(demo.CHECKPOINT), "--model", str(demo.BASE_MODEL), "--dataset", str(demo.TEST_DATA)]
    output = tmp_path / "run"
    command = ["-m", "dist_eval", *options, "--initial-peers", *peers, "--limit", "20", "--output", str(output)]
    assert run_here(*command) == 0
    swarm = results_of(output)["swarm"]
    assert [server["peer_id"] for server in swarm["servers"]] == [peers[0].rpartition("/")[2]]
    assert swarm["dropped_records"] == 11
