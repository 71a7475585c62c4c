"""The arithmetic on paper: needs follow from measured inputs, and the resource that is exhausted first is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Launcher

from benchmarks.capacity import Need, batches, build_parser, needs, table, verdict
from benchmarks.capacity_inputs import Measured

KNOWN = Measured(
    tokenizing=1e-6,
    token_bytes=4.0,
    planning=1e-7,
    plan_bytes=9.0,
    record_bytes=500.0,
    reading=5e-5,
    row_bytes=32.0,
    leader_bytes=200.0,
    tail={"metrics": 1e-6, "parquet": 1e-6},
    intervals=3.0,
    rows=1_000_000,
    requests=50_000.0,
    group_files=1.0,
    opening=0.01,
    hop=0.001,
    world_sizes=(4, 16),
)


def found(*words: str, known: Measured = KNOWN) -> dict[str, Need]:
    return {need.part: need for need in needs(build_parser().parse_args(words), known)}


def test_the_program_measures_and_names_what_gives_way_first(launcher: Launcher, tmp_path: Path) -> None:
    words = ["--quick", "--output", str(tmp_path), "--replicas", "1"]
    process = launcher.run("-m", "benchmarks.capacity", *words, preloaded=False)
    assert process.returncode == 0, process.stderr
    content = json.loads((tmp_path / "capacity.json").read_text())
    measured = content["measured"]
    assert all(value > 0 for value in (*measured["tail"].values(), measured["hop"], measured["requests"]))
    assert measured["world_sizes"] == [2, 4]
    assert measured["group_files"] == pytest.approx(1, abs=1), "each rank is connected with every other"
    shares = {need["part"]: need["share"] for need in content["needs"]}
    assert content["verdict"].startswith(f"{max(shares, key=lambda part: shares[part])} is exhausted first")
    assert "swarm: computing is exhausted first: it needs 228 h" in process.stdout
    assert not launcher.leftovers()


def test_computing_is_two_operations_for_each_parameter_and_token() -> None:
    computing = found("--examples", "1000000", "--tokens", "30", "--prompts", "10")["swarm: computing"]
    tokens, servers = 1e6 * 40, 7 * 10
    assert computing.value == pytest.approx(2 * 70e9 * tokens / (servers * 100e12) / 3600)


def test_activations_go_to_each_server_and_back_and_prompts_once_with_each_request() -> None:
    options = build_parser().parse_args(["--examples", "240", "--replicas", "1"])
    assert batches(options) == 10  # 24 of 41 tokens fill one
    through_ranks = found("--examples", "240", "--replicas", "1")["swarm: bytes through the ranks"]
    activations, prompts = 2 * 240 * 41 * 8192 * 2 * 7, 10 * 70 * 16 * 8192 * 2
    assert through_ranks.value == pytest.approx((activations + prompts) / (1000 * 10e9 / 8) / 3600)


@pytest.mark.parametrize("part", ["tokenizing, on each host", "predictions on rank 0", "journal, on the shared folder"])
def test_twice_the_examples_need_twice_as_much(part: str) -> None:
    once, twice = (found("--examples", str(count))[part].value for count in (24_000_000, 48_000_000))
    assert twice == pytest.approx(2 * once)


def test_the_store_is_asked_no_more_by_more_ranks_than_it_can_answer() -> None:
    few, many = (found("--ranks", str(count))["store, all ranks report and wait"].value for count in (1000, 4000))
    assert many == pytest.approx(few)


def test_what_is_needed_most_of_its_limit_gives_way_first() -> None:
    parts = list(found(known=replace(KNOWN, leader_bytes=2000.0)).values())
    assert verdict(parts).startswith(
        "predictions on rank 0 is exhausted first: it needs 187 GiB, 292% of the limit of 64"
    )
    assert table(parts).splitlines()[1].startswith("predictions on rank 0")
    assert "swarm: computing would be exhausted first" in verdict(list(found().values()))
