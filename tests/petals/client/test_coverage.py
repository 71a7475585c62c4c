"""A swarm's coverage."""

from __future__ import annotations

import functools
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SwarmClient
from foreign_records import peer_id

from dist_eval.errors import SwarmError
from dist_eval.petals.client.coverage import (
    SwarmCoverage,
    _dropped,
    _missing,
    adapter_fault,
    format_ranges,
    look_up_coverage,
    unfit_message,
    wait_until_covered,
)
from dist_eval.petals.client.dht_records import read_models
from dist_eval.petals.client.records import ServerSpan
from dist_eval.petals.client.status import Status
from dist_eval.petals.server.private import PrivateSwarm


def span(start: int, end: int, state: str = "online", **changes: object) -> ServerSpan:
    fields = {"dtype": "float32", "quantization": "none", "throughput": 1.0, "version": "2", "name": None, **changes}
    return ServerSpan.model_validate(
        {"peer_id": f"Qm{start}to{end}", "start": start, "end": end, "state": state, **fields}
    )


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 9], "0, 2-3, 9")])
def test_numbers_are_formatted_as_ranges(numbers: list[int], text: str) -> None:
    assert format_ranges(numbers) == text


def test_replicas_count_online_servers_only() -> None:
    coverage = SwarmCoverage("model", 6, (span(0, 3), span(1, 3), span(3, 5, "joining"), span(3, 4, "offline")))
    assert coverage.replicas == [1, 2, 2, 0, 0, 0]
    assert coverage.missing == [3, 4, 5]


def test_servers_whose_version_does_not_compute_the_model_do_not_count() -> None:
    config = SimpleNamespace(model_type="mixtral")
    coverage = SwarmCoverage("model", 3, (span(0, 3, version="2.2.0.post1"), span(0, 1, version="2.3.0.dev2")))
    assert coverage.serving(None) == coverage
    assert [server.state for server in coverage.serving(config).servers] == ["unfit", "online"]
    assert coverage.serving(config).replicas == [1, 0, 0]
    assert unfit_message(coverage.serving(None), config) == ""
    message = unfit_message(coverage.serving(config), config)
    assert "Blocks 1-2 of model are held only by servers with Petals 2.2.0.post1" in message
    assert "needs servers with `dist-eval swarm` or Petals main (2.3.0.dev2)." in message


def test_the_description_shows_servers_replicas_and_missing_blocks() -> None:
    text = SwarmCoverage(
        "model", 4, (span(0, 2, quantization="nf4", dtype="float16", name="mine"), span(0, 3, "joining"))
    ).describe()
    assert "model: 4 blocks, 2 servers" in text
    assert "float16 (nf4)" in text
    assert "mine" in text
    assert "joining" in text
    assert "replicas per block: 0 (blocks 2-3), 1 (blocks 0-1)" in text
    assert "missing blocks: 2-3" in text


def test_the_description_has_the_columns_that_say_something() -> None:
    text = SwarmCoverage(
        "model",
        4,
        (
            span(0, 4),
            span(0, 4, version="2.3.0.dev2", adapters=["mine/lora"], seconds_per_token=0.00125, free_cache=32768),
        ),
    ).describe()
    head, first, second = text.splitlines()[1:4]
    assert head.split() == [
        "server",
        "blocks",
        "state",
        "dtype",
        "petals",
        "throughput",
        "ms/token",
        "free",
        "cache",
        "adapters",
    ]
    assert first.split()[4:] == ["2", "1"]
    assert second.split()[4:] == ["2.3.0.dev2", "1", "1.25", "32768", "mine/lora"]
    assert "Servers run different versions of Petals (2, 2.3.0.dev2)." in text
    assert "differently" not in text


def test_servers_that_are_not_reachable_from_here_are_said_and_the_blocks_that_only_they_hold() -> None:
    coverage = SwarmCoverage("model", 4, (span(0, 3), span(2, 4)), unreachable=frozenset({"Qm2to4"}))
    near, far = coverage.describe().splitlines()[2:4]
    assert " online " in near and " not reachable from here " in far
    assert coverage.missing == [] and "not reachable from here: every server of blocks 3" in coverage.describe()
    status = Status([coverage], [], Counter(), asked=frozenset({"Qm0to3", "Qm2to4"}))
    assert [server["reachable"] for server in status.summary()["models"][0]["servers"]] == [True, False]
    assert not status.is_complete
    unasked = Status([coverage], [], Counter()).summary()["models"][0]["servers"]
    assert [server["reachable"] for server in unasked] == [None, None]


LORA = {"adapters": ["lora"]}


@pytest.mark.parametrize(
    ("servers", "missing", "words"),
    [
        ([span(0, 4, **LORA)], [], None),
        ([span(0, 4)], [0, 1, 2, 3], "for blocks 0-3 of model. The servers announce none: leave out --adapter, or"),
        (
            [span(0, 4), span(1, 3, **LORA), span(0, 4, adapters=["a", "b"])],
            [0, 3],
            "blocks 0, 3 of model. The servers announce a (blocks 0:4), b (blocks 0:4), lora (blocks 1:3): name one",
        ),
        ([span(0, 2), span(2, 4, "joining", **LORA)], [0, 1, 2, 3], None),
    ],
    ids=["held", "not held", "on a part", "blocks are missing anyhow"],
)
def test_only_servers_with_the_adapter_count(servers: list[ServerSpan], missing: list[int], words: str | None) -> None:
    coverage = SwarmCoverage("model", 4, tuple(servers), "lora")
    assert coverage.missing == missing
    fault = adapter_fault(coverage, is_over=True)
    assert bool(fault) == (words is not None)
    assert (words or "") in fault
    assert not words or "No online server holds the adapter 'lora'" in fault
    waits = any("lora" in (server.adapters or ()) for server in servers)
    assert adapter_fault(coverage, is_over=False) == ("" if waits else fault)


async def announce_as_too_fast(prefix: str, _dht: Any, node: Any) -> None:
    """Announces a server of two blocks that claims a speed which no server has."""
    record = [2, 1.0, {"start_block": 0, "end_block": 2, "forward_rps": 4e9}]
    for block in range(2):
        await node.store(f"{prefix}.{block}", record, time.time() + 60.0, subkey=peer_id(1))


def test_records_that_were_dropped_are_named_with_the_reason(
    demo_swarm: PrivateSwarm, swarm_client: SwarmClient
) -> None:
    dht = swarm_client.join(demo_swarm)
    dht.run_coroutine(functools.partial(announce_as_too_fast, "fast"))
    reason = (
        f"2 records: ...{peer_id(1)[-8:]}: forward_rps is 4000000000.0: input should be less than or equal to 100000000"
    )
    with pytest.raises(SwarmError) as caught:
        wait_until_covered(dht, "fast", 2, timeout=1.0)
    message = str(caught.value)
    assert "After 1 s, the swarm serves no block of 'fast'; it serves base (4 blocks)." in message and reason in message
    coverage = look_up_coverage(dht, "fast", 2)
    assert coverage.summary().dropped_records == 2
    assert f"dropped, because they are implausible: {reason}" in coverage.describe()
    # as if its model were announced as well
    assert reason in _dropped(coverage)
    what, advice = _missing(coverage, lambda: {"fast": 2}, "--swarm-timeout")
    assert "it serves" not in what and "is announced, but without servers" in advice


def test_the_coverage_of_a_real_swarm(demo_swarm: PrivateSwarm, swarm_client: SwarmClient) -> None:
    dht = swarm_client.join(demo_swarm)
    coverage = look_up_coverage(dht, demo_swarm.dht_prefix, 4)
    assert [(s.start, s.end, s.state, s.dtype) for s in coverage.servers] == [
        (0, 2, "online", "float32"),
        (2, 4, "online", "float32"),
    ]
    assert coverage.replicas == [1, 1, 1, 1]
    assert [s.peer_id for s in coverage.servers] == [address.split("/")[-1] for address in demo_swarm.addresses]
    assert read_models(dht, timeout=5.0) == ({demo_swarm.dht_prefix: 4}, {})


def test_waiting_for_a_model_that_is_not_served_times_out_and_names_those_that_are(
    demo_swarm: PrivateSwarm, swarm_client: SwarmClient
) -> None:
    dht = swarm_client.join(demo_swarm)
    said: list[str] = []
    with pytest.raises(SwarmError, match=r"no block of 'other'; it serves base \(4 blocks\)\. .*right model.*--dht-"):
        wait_until_covered(dht, "other", 4, timeout=6.0, say=said.append)
    what = "the swarm serves no block of 'other'; it serves base (4 blocks)."
    assert said == [f"waiting up to 6 s (--swarm-timeout): {what}"]


def test_waiting_names_the_blocks_that_are_missing(demo_swarm: PrivateSwarm, swarm_client: SwarmClient) -> None:
    dht = swarm_client.join(demo_swarm)
    with pytest.raises(SwarmError, match=r"After 5 s, no .* holds blocks 4-7 of base \(0-7\)\. .*--swarm-timeout"):
        wait_until_covered(dht, demo_swarm.dht_prefix, 8, timeout=5.0)
