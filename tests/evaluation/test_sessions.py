"""Runs whose texts begin alike: the same bytes on any number of ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from conftest import ForkedSwarm, Launcher, SwarmClient, results_of, run_here, wait_for, wait_until_under_way
from samples import digits

from dist_eval import demo
from dist_eval.petals.server.private import PrivateSwarm
from dist_eval.runs.files import PREDICTIONS

ROWS = 60


@pytest.fixture(scope="module")
def options(demo_swarm: PrivateSwarm, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    data = digits(tmp_path_factory.mktemp("data") / "rows.csv", rows=ROWS)
    return [
        *("-m", "dist_eval", "--model", str(demo.BASE_MODEL), "--dataset", str(data), "--prompt", "{text}"),
        *("--label-words", *(f"<{digit}>" for digit in range(10)), "--label-delimiter", ""),
        *("--few-shot", "3", "--few-shot-from", str(demo.TRAIN_DATA), "--report", "none"),
        *("--initial-peers", *demo_swarm.initial_peers),
    ]


@pytest.fixture(scope="module")
def undisturbed(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of one rank."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run_here(*options, "--output", str(output)) == 0
    return output


def free_cache(swarm: PrivateSwarm, swarm_client: SwarmClient) -> list[int]:
    return sorted(swarm_client.backbone(swarm).requests.servers.free_cache().values())


def with_several_words(options: list[str]) -> list[str]:
    words = [f"{digit}=<{digit}><{(digit + 1) % 10}>" for digit in range(10)]
    first, second = options.index("--label-words") + 1, options.index("--label-delimiter")
    return [*options[:first], *words, *options[second:], "--limit", "20"]


def assert_same_bytes(one: Path, other: Path) -> None:
    assert (one / PREDICTIONS).read_bytes() == (other / PREDICTIONS).read_bytes()


def assert_close(one: Path, other: Path) -> None:
    found, expected = (np.stack(pandas.read_parquet(run / PREDICTIONS)["probabilities"]) for run in (one, other))
    assert np.allclose(found, expected, atol=1e-4)


def test_examples_of_a_prompt_are_computed_once_with_the_same_bytes_on_any_number_of_ranks(
    options: list[str], undisturbed: Path, launcher: Launcher, tmp_path: Path
) -> None:
    assert run_here(*options, "--session-share", "0", "--output", str(tmp_path / "plain")) == 0
    result = launcher.run(*options, "--output", str(tmp_path / "three"), ranks=3)
    assert result.returncode == 0, result.stderr
    one, plain, three = map(results_of, (undisturbed, tmp_path / "plain", tmp_path / "three"))
    assert_same_bytes(undisturbed, tmp_path / "three")
    assert one["sessions"] == three["sessions"] and one["metrics"] == three["metrics"]
    assert one["sessions"]["rows"] == ROWS and one["sessions"]["fell_back"] == 0
    assert plain["sessions"] is None
    assert one["plan"]["real_tokens"] + one["sessions"]["saved_tokens"] == plain["plan"]["real_tokens"]
    assert_close(undisturbed, tmp_path / "plain")


def test_a_killed_run_leaves_no_cache_behind_and_resumes_by_its_plan(
    options: list[str],
    undisturbed: Path,
    demo_swarm: PrivateSwarm,
    swarm_client: SwarmClient,
    launcher: Launcher,
    tmp_path: Path,
) -> None:
    before, killed = free_cache(demo_swarm, swarm_client), tmp_path / "killed"
    slow = [*options, "--max-tokens-per-second", "1500", "--output", str(killed)]
    run = launcher.start(*slow, preloaded=True)
    wait_until_under_way(killed, run)
    assert free_cache(demo_swarm, swarm_client) != before
    launcher.end()
    run.communicate()
    assert wait_for(lambda: free_cache(demo_swarm, swarm_client) == before, 20)
    without_room = shutil.copytree(killed, tmp_path / "without room")
    assert run_here(*options, "--output", str(killed)) == 0
    assert results_of(killed)["ranks"][0]["resumed"] > 0
    assert_same_bytes(killed, undisturbed)
    assert wait_for(lambda: free_cache(demo_swarm, swarm_client) == before, 20)
    assert run_here(*options, "--session-share", "0", "--output", str(without_room)) == 0
    sessions = results_of(without_room)["sessions"]
    assert 0 < sessions["fell_back"] < sessions["batches"], "plain forwards take the place of sessions"


@pytest.mark.slow
def test_other_servers_and_one_that_is_killed_change_no_byte(
    options: list[str], undisturbed: Path, launcher: Launcher, tmp_path: Path
) -> None:
    swarm = ForkedSwarm(
        str(demo.BASE_MODEL), num_blocks=4, dht_prefix=demo.BASE_MODEL.name, spans=[(0, 3), (3, 4), (0, 4)], threads=1
    )
    with swarm:
        peers = options[: options.index("--initial-peers") + 1] + swarm.initial_peers
        slow = [*peers, "--max-tokens-per-second", "3000", "--output", str(tmp_path)]
        run = launcher.start(*slow, preloaded=True)
        wait_until_under_way(tmp_path, run)
        swarm.kill_server(2)
        err = run.communicate()[1]
    assert run.returncode == 0, err
    assert results_of(tmp_path)["sessions"]["fell_back"] == 0
    assert_same_bytes(tmp_path, undisturbed)


def test_soft_prompts_are_computed_once(demo_swarm: PrivateSwarm, tmp_path: Path) -> None:
    rows = demo.TEST_DATA.read_text().splitlines()[:401]
    (tmp_path / "rows.csv").write_text("\n".join(row[-30:] if "," in row[-30:] else row for row in rows) + "\n")
    command = ["-m", "dist_eval", "--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT)]
    command += ["--dataset", str(tmp_path / "rows.csv"), "--initial-peers", *demo_swarm.initial_peers]
    for name, share in (("sessions", "0.5"), ("plain", "0")):
        assert run_here(*command, "--session-share", share, "--output", str(tmp_path / name), "--report", "none") == 0
    assert results_of(tmp_path / "sessions")["sessions"]["rows"] == len(rows) - 1
    assert_close(tmp_path / "sessions", tmp_path / "plain")


@pytest.mark.parametrize("examples", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_prompts_before_several_words_are_computed_once(options: list[str], examples: int, tmp_path: Path) -> None:
    command = with_several_words(options)
    if not examples:
        few_shot = command.index("--few-shot")
        del command[few_shot : few_shot + 4]
    assert run_here(*command, "--output", str(tmp_path / "one")) == 0
    assert run_here(*command, "--session-share", "0", "--output", str(tmp_path / "plain")) == 0
    one, plain = (results_of(tmp_path / name) for name in ("one", "plain"))
    assert one["sessions"]["rows"] == 20 and one["sessions"]["fell_back"] == 0
    assert 4 * one["plan"]["real_tokens"] < plain["plan"]["real_tokens"]
    assert one["plan"]["real_tokens"] + one["sessions"]["saved_tokens"] <= plain["plan"]["padded_tokens"]
    assert_close(tmp_path / "one", tmp_path / "plain")


@pytest.mark.slow
def test_prompts_before_several_words_give_the_same_bytes_on_two_ranks(
    options: list[str], launcher: Launcher, tmp_path: Path
) -> None:
    command = with_several_words(options)
    assert run_here(*command, "--output", str(tmp_path / "one")) == 0
    result = launcher.run(*command, "--output", str(tmp_path / "two"), ranks=2)
    assert result.returncode == 0, result.stderr
    assert_same_bytes(tmp_path / "one", tmp_path / "two")
