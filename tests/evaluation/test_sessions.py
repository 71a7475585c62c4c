"""Runs whose texts begin alike: the same bytes on any number of ranks."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pandas
import pytest
from conftest import ForkedSwarm, Launcher, SwarmClient, results_of, run_here, wait_for

from dist_eval import demo
from dist_eval.runs.files import PREDICTIONS
from dist_eval.serving.private import PrivateSwarm

ROWS = 60


@pytest.fixture
def options(demo_swarm: PrivateSwarm, tmp_path: Path) -> list[str]:
    rows = demo.TEST_DATA.read_text().splitlines()[: ROWS + 1]
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    return [
        *("-m", "dist_eval", "--model", str(demo.BASE_MODEL), "--dataset", str(tmp_path / "rows.csv")),
        *("--prompt", "{text}", "--label-words", *(f"<{digit}>" for digit in range(10)), "--label-delimiter", ""),
        *("--few-shot", "3", "--few-shot-from", str(demo.TRAIN_DATA), "--report", "none"),
        *("--initial-peers", *demo_swarm.initial_peers),
    ]


def free_cache(swarm: PrivateSwarm, swarm_client: SwarmClient) -> list[int]:
    return sorted(swarm_client.backbone(swarm).requests.servers.free_cache().values())


def test_examples_of_a_prompt_are_computed_once_with_the_same_bytes_on_any_number_of_ranks(
    options: list[str], launcher: Launcher, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*options, "--output", str(tmp_path / "one")) == 0, capfd.readouterr().err
    assert run_here(*options, "--session-share", "0", "--output", str(tmp_path / "plain")) == 0
    result = launcher.run(*options, "--output", str(tmp_path / "three"), ranks=3)
    assert result.returncode == 0, result.stderr
    one, plain, three = (results_of(tmp_path / name) for name in ("one", "plain", "three"))
    assert (tmp_path / "one" / PREDICTIONS).read_bytes() == (tmp_path / "three" / PREDICTIONS).read_bytes()
    assert one["sessions"] == three["sessions"] and one["metrics"] == three["metrics"]
    assert one["sessions"]["rows"] == ROWS and one["sessions"]["fell_back"] == 0
    assert plain["sessions"] is None
    assert one["plan"]["real_tokens"] + one["sessions"]["saved_tokens"] == plain["plan"]["real_tokens"]
    found, expected = (
        np.stack(pandas.read_parquet(tmp_path / name / PREDICTIONS)["probabilities"]) for name in ("one", "plain")
    )
    assert np.allclose(found, expected, atol=1e-4)


def test_a_killed_run_leaves_no_cache_behind_and_resumes_to_the_same_bytes(
    options: list[str],
    demo_swarm: PrivateSwarm,
    swarm_client: SwarmClient,
    launcher: Launcher,
    tmp_path: Path,
) -> None:
    before = free_cache(demo_swarm, swarm_client)
    slow = [*options, "--max-tokens-per-second", "1500", "--output", str(tmp_path / "killed")]
    run = launcher.start(*slow, ranks=1, preloaded=True)
    journal = tmp_path / "killed" / "journal"
    assert wait_for(lambda: any(path.stat().st_size for path in journal.glob("*.batches")))
    assert free_cache(demo_swarm, swarm_client) != before
    launcher.end()
    run.communicate()
    assert wait_for(lambda: free_cache(demo_swarm, swarm_client) == before, 20)
    for name in ("killed", "whole"):
        assert run_here(*options, "--output", str(tmp_path / name)) == 0
    assert results_of(tmp_path / "killed")["ranks"][0]["resumed"] > 0
    assert (tmp_path / "killed" / PREDICTIONS).read_bytes() == (tmp_path / "whole" / PREDICTIONS).read_bytes()
    assert wait_for(lambda: free_cache(demo_swarm, swarm_client) == before, 20)


def test_other_servers_and_one_that_is_killed_change_no_byte(
    options: list[str], swarm_client: SwarmClient, launcher: Launcher, tmp_path: Path
) -> None:
    assert run_here(*options, "--output", str(tmp_path / "undisturbed")) == 0
    swarm = ForkedSwarm(
        str(demo.BASE_MODEL), num_blocks=4, dht_prefix=demo.BASE_MODEL.name, spans=[(0, 3), (3, 4), (0, 4)], threads=1
    )
    with swarm:
        peers = options[: options.index("--initial-peers") + 1] + swarm.initial_peers
        slow = [*peers, "--max-tokens-per-second", "3000", "--output", str(tmp_path / "killed")]
        run = launcher.start(*slow, ranks=2, preloaded=True)
        journal = tmp_path / "killed" / "journal"
        assert wait_for(lambda: any(path.stat().st_size for path in journal.glob("*.batches")))
        swarm.kill_server(2)
        err = run.communicate()[1]
    assert run.returncode == 0, err
    killed = results_of(tmp_path / "killed")
    assert killed["sessions"]["fell_back"] == 0
    assert (tmp_path / "killed" / PREDICTIONS).read_bytes() == (tmp_path / "undisturbed" / PREDICTIONS).read_bytes()


def test_soft_prompts_are_computed_once(demo_swarm: PrivateSwarm, tmp_path: Path) -> None:
    rows = demo.TEST_DATA.read_text().splitlines()
    (tmp_path / "rows.csv").write_text("\n".join(row[-30:] if "," in row[-30:] else row for row in rows) + "\n")
    command = ["-m", "dist_eval", "--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT)]
    command += ["--dataset", str(tmp_path / "rows.csv"), "--initial-peers", *demo_swarm.initial_peers]
    for name, share in (("sessions", "0.5"), ("plain", "0")):
        assert run_here(*command, "--session-share", share, "--output", str(tmp_path / name), "--report", "none") == 0
    found, expected = (
        np.stack(pandas.read_parquet(tmp_path / name / PREDICTIONS)["probabilities"]) for name in ("sessions", "plain")
    )
    assert results_of(tmp_path / "sessions")["sessions"]["rows"] == len(rows) - 1
    assert np.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("examples", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_prompts_before_several_words_are_computed_once(
    options: list[str], examples: int, launcher: Launcher, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [f"{digit}=<{digit}><{(digit + 1) % 10}>" for digit in range(10)]
    first, second = options.index("--label-words") + 1, options.index("--label-delimiter")
    command = [*options[:first], *words, *options[second:]]
    if not examples:
        few_shot = command.index("--few-shot")
        del command[few_shot : few_shot + 4]
    assert run_here(*command, "--output", str(tmp_path / "one")) == 0, capfd.readouterr().err
    assert run_here(*command, "--session-share", "0", "--output", str(tmp_path / "plain")) == 0
    result = launcher.run(*command, "--output", str(tmp_path / "two"), ranks=2)
    assert result.returncode == 0, result.stderr
    one, plain = (results_of(tmp_path / name) for name in ("one", "plain"))
    assert (tmp_path / "one" / PREDICTIONS).read_bytes() == (tmp_path / "two" / PREDICTIONS).read_bytes()
    assert one["sessions"]["rows"] == ROWS and one["sessions"]["fell_back"] == 0
    assert 4 * one["plan"]["real_tokens"] < plain["plan"]["real_tokens"]
    assert one["plan"]["real_tokens"] + one["sessions"]["saved_tokens"] <= plain["plan"]["padded_tokens"]
    found, expected = (
        np.stack(pandas.read_parquet(tmp_path / name / PREDICTIONS)["probabilities"]) for name in ("one", "plain")
    )
    assert np.allclose(found, expected, atol=1e-4)


def test_a_resumed_run_keeps_its_plan_and_takes_plain_forwards_without_room(
    options: list[str], tmp_path: Path, launcher: Launcher
) -> None:
    out = ["--output", str(tmp_path / "out")]
    run = launcher.start(*options, "--max-tokens-per-second", "1500", *out, ranks=1, preloaded=True)
    journal = tmp_path / "out" / "journal"
    assert wait_for(lambda: any(path.stat().st_size for path in journal.glob("*.batches")))
    run.send_signal(signal.SIGTERM)
    run.communicate()
    assert run_here(*options, "--session-share", "0", *out) == 0
    sessions = results_of(tmp_path / "out")["sessions"]
    assert 0 < sessions["fell_back"] < sessions["batches"]
