"""Runs that end early, in many ways, and resume: nothing is lost, and the result is byte-identical."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import TIMEOUT, Launcher, assert_equal_runs, journal_size, results_of, run_here, wait_for
from samples import digits

from dist_eval import demo

ROWS_REPEATED = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some seconds of work."""
    return digits(tmp_path_factory.mktemp("data") / "long.csv", times=ROWS_REPEATED)


def arguments(data: Path, output: Path, *extra_options: str) -> list[str]:
    return [
        *("-m", "dist_eval", "--model", str(demo.BASE_MODEL), "--checkpoint", str(demo.CHECKPOINT)),
        *("--dataset", str(data), "--backend", "local", "--report", "none"),
        *("--output", str(output), *extra_options),
    ]


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run_here(*arguments(data, output)) == 0
    return output


def start(launcher: Launcher, *command: str, output: Path, preloaded: bool = True) -> subprocess.Popen[str]:
    """Starts a run on two ranks and waits until it has finished some batches."""
    before = journal_size(output)
    process = launcher.start(*command, ranks=2, preloaded=preloaded)
    assert wait_for(lambda: journal_size(output) > before + 2000 or process.poll() is not None)
    assert process.poll() is None, "over too soon" + process.communicate()[1]
    return process


def assert_resumes(launcher: Launcher, command: list[str], undisturbed: Path, output: Path) -> None:
    """Another number of ranks, namely one, completes it."""
    assert run_here(*command) == 0
    assert_equal_runs(undisturbed, output)
    found = results_of(output)["ranks"]
    resumed, samples = (sum(rank[name] for rank in found) for name in ("resumed", "samples"))
    assert resumed > 0
    assert resumed + samples == results_of(output)["data"]["examples"]
    assert not launcher.leftovers()


def test_a_run_shuts_down_refuses_changed_inputs_and_resumes(
    launcher: Launcher, tmp_path: Path, data: Path, undisturbed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    command = arguments(data, output)
    process = start(launcher, *command, output=output)
    os.kill(launcher.rank(1), signal.SIGUSR1)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    results = results_of(output)
    assert results["status"] == "incomplete", err
    coverage = results["coverage"]
    assert 0 < coverage["seen"] < coverage["expected"] == coverage["seen"] + coverage["missing"]
    assert coverage["duplicates"] == coverage["failed"] == 0
    assert "metrics" not in results
    message = results["error"]["message"]
    assert "SIGUSR1" in message
    assert err.count(f"dist_eval: {message}") == 1
    assert not launcher.processes()
    size, other = journal_size(output), tmp_path / "other.csv"
    other.write_text("\n".join(data.read_text().splitlines()[:-1]) + "\n")
    assert run_here(*arguments(other, output, "--token-budget", "500")) == 1
    differ = "a part of another run: it differs in the dataset and the --token-budget."
    assert differ in capfd.readouterr().err
    assert results_of(output)["status"] == "incomplete"
    assert journal_size(output) == size
    assert_resumes(launcher, command, undisturbed, output)


def test_torchrun_restarts_the_ranks_and_they_resume(
    launcher: Launcher, tmp_path: Path, data: Path, undisturbed: Path
) -> None:
    output = tmp_path / "out"
    process = start(launcher, "--max-restarts=2", *arguments(data, output), output=output)
    os.kill(launcher.rank(1), signal.SIGKILL)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    lost = r"no (heartbeat|progress) for \S+ s from rank 1 on \S+ "
    assert re.search(lost + r"\(\d+ examples done, the last ones in (batch \d+|no batch)\)", err)
    assert_equal_runs(undisturbed, output)
    assert sum(rank["resumed"] for rank in results_of(output)["ranks"]) > 0
    assert not launcher.leftovers()


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_does_not_block_the_others(
    launcher: Launcher, tmp_path: Path, data: Path, undisturbed: Path
) -> None:
    output = tmp_path / "out"
    command = arguments(data, output, "--collective-timeout", "5")
    process = start(launcher, *command, output=output, preloaded=False)
    hanging = launcher.rank(1)
    os.kill(hanging, signal.SIGSTOP)
    assert wait_for(lambda: results_of(output)["status"] == "failed")
    os.kill(hanging, signal.SIGKILL)  # as torchrun does, half a minute later
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    results = results_of(output)
    assert results["status"] == "failed"
    assert re.match(
        r"Rank 0 has (received no heartbeat|seen no progress) for 5 s from rank 1 on \S+ "
        r"\(\d+ examples done, the last ones in (batch \d+|no batch)\)\. .*--collective-timeout",
        results["error"]["message"],
    )
    assert not launcher.processes()
    assert_resumes(launcher, command, undisturbed, output)
