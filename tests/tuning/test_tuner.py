"""Tuning runs as users start them: on one rank, on several, through a swarm, interrupted, and with invalid options."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TIMEOUT, ForkedSwarm, Launcher, results_of, run_here, wait_for, with_options
from samples import digits

from dist_eval import demo
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server.private import PrivateSwarm

ROWS, EVALUATED, EPOCHS = 90, 40, 2
STOPPED = {"SIGUSR1": 75, "STOP": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("digits")
    return {
        "train": digits(folder / "train.csv", source=demo.TRAIN_DATA, rows=ROWS),
        "evaluation": digits(folder / "evaluation.csv", rows=EVALUATED),
    }


def command(data: dict[str, Path], output: Path, *further: str) -> list[str]:
    own = [
        *("-m", "dist_eval.tuning", "--model", str(demo.BASE_MODEL), "--dataset", str(data["train"])),
        *("--eval-dataset", str(data["evaluation"]), "--epochs", str(EPOCHS), "--batch-size", "16"),
        *("--pre-seq-len", "4", "--output", str(output)),
    ]
    return with_options(own, further)


LOCAL = ("--backend", "local")


def tuned(output: Path, name: str = "last") -> TunedCheckpoint:
    return TunedCheckpoint.load(output / name)


def noted(output: Path) -> dict[str, Any]:
    return json.loads((output / "tuning.json").read_text())


def run(launcher: Launcher, *arguments: str, ranks: int | None = None) -> subprocess.CompletedProcess[str]:
    result = launcher.run(*arguments, ranks=ranks)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def alone(data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, undisturbed."""
    output = tmp_path_factory.mktemp("alone") / "out"
    result = run(Launcher(tmp_path_factory.mktemp("own")), *command(data, output, *LOCAL))
    assert re.search(r"^\S+ tuning: 12 of 12 updates, \S+/s, epoch 2, loss \d+\.\d{4}$", result.stderr, re.MULTILINE)
    assert f"last: {output / 'last'} (epoch 2 of 2: loss " in result.stdout
    return output


def assert_close(one: TunedCheckpoint, other: TunedCheckpoint) -> None:
    for name in ("head", "prompts", "deep_prompts"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-3, atol=1e-4)


def test_what_it_writes_can_be_evaluated_and_says_what_it_did(
    alone: Path, data: dict[str, Path], tmp_path: Path
) -> None:
    notes = noted(alone)
    assert notes["status"] == "complete"
    assert [epoch["epoch"] for epoch in notes["epochs"]] == [1, 2]
    assert notes["epochs"][1]["loss"] < notes["epochs"][0]["loss"]
    assert (notes["data"]["examples"], notes["evaluation_data"]["examples"]) == (ROWS, EVALUATED)
    best = max(notes["epochs"], key=lambda epoch: epoch["metrics"]["accuracy"])
    assert notes["best"] == {"epoch": best["epoch"], "metric": "accuracy", "value": best["metrics"]["accuracy"]}
    assert (alone / "best" / "tokenizer.json").read_bytes() == (demo.BASE_MODEL / "tokenizer.json").read_bytes()
    for name, epoch in (("last", notes["epochs"][-1]), ("best", best)):
        output = tmp_path / name
        options = ["--checkpoint", str(alone / name), "--dataset", str(data["evaluation"]), *LOCAL, "--report", "none"]
        assert run_here("-m", "dist_eval", *options, "--output", str(output)) == 0
        metrics = results_of(output)["metrics"]
        assert {key: metrics[key] for key in epoch["metrics"]} == epoch["metrics"]
    assert tuned(alone).label_names == [str(digit) for digit in range(10)]
    assert tuned(alone).base_fingerprint


@pytest.mark.slow
def test_ranks_and_accumulation_make_the_updates_of_the_joint_batch_through_a_swarm_too(
    alone: Path, data: dict[str, Path], demo_swarm: PrivateSwarm, launcher: Launcher, tmp_path: Path
) -> None:
    small = ("--batch-size", "4", "--accumulation-steps", "4")
    run(launcher, *command(data, tmp_path, *small, "--initial-peers", *demo_swarm.initial_peers), ranks=3)
    assert_close(tuned(tmp_path), tuned(alone))
    notes = noted(tmp_path)
    for ours, theirs in zip(notes["epochs"], noted(alone)["epochs"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    assert [rank["traffic"]["retries"] for rank in notes["ranks"]] == [0, 0, 0]
    assert len(notes["swarm"]["servers"]) == 2
    assert not any(peer in (tmp_path / "tuning.json").read_text() for peer in demo_swarm.initial_peers)
    assert not launcher.leftovers()


@pytest.fixture(scope="module")
def replicated_swarm() -> Iterator[PrivateSwarm]:
    with ForkedSwarm(
        str(demo.BASE_MODEL), num_blocks=4, dht_prefix=demo.BASE_MODEL.name, spans=[(0, 4), (0, 4)], threads=1
    ) as swarm:
        yield swarm


@pytest.mark.slow
def test_a_server_killed_while_it_learns_costs_nothing_but_time(
    alone: Path, data: dict[str, Path], replicated_swarm: PrivateSwarm, launcher: Launcher, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    peers = ["--initial-peers", *replicated_swarm.initial_peers]
    process = launcher.start(*command(data, output, *peers, "--save-every", "1"))
    assert wait_for(lambda: (output / "journal" / "state.safetensors").exists() or process.poll() is not None)
    replicated_swarm.kill_server(1)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    assert_close(tuned(output), tuned(alone))
    assert not launcher.leftovers()


def start(launcher: Launcher, *arguments: str, output: Path, ranks: int | None = None) -> subprocess.Popen[str]:
    """Starts a tuning and waits for its first updates."""
    state = output / "journal" / "state.safetensors"
    before = state.stat().st_mtime_ns if state.exists() else 0
    process = launcher.start(*arguments, ranks=ranks, preloaded=True)
    assert wait_for(lambda: (state.exists() and state.stat().st_mtime_ns > before) or process.poll() is not None)
    assert process.poll() is None, "over too soon" + process.communicate()[1]
    return process


@pytest.mark.parametrize("how", ["SIGKILL", *(pytest.param(how, marks=pytest.mark.slow) for how in STOPPED)])
def test_an_interrupted_run_resumes_to_the_same_bits(
    how: str, alone: Path, data: dict[str, Path], launcher: Launcher, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    arguments = command(data, output, *LOCAL, "--save-every", "1")
    process = start(launcher, *arguments, output=output)
    if how == "STOP":
        (output / "STOP").touch()
    else:
        os.kill(process.pid, getattr(signal, how))
    _, err = process.communicate(timeout=TIMEOUT)
    if how == "SIGKILL":
        assert wait_for(lambda: not launcher.processes())
    else:
        assert process.returncode == STOPPED[how], err
        assert noted(output)["status"] == "incomplete"
        assert "start the same command again to resume" in err
    assert run_here(*arguments) == 0
    assert not re.search(r"\b0/12 ", capfd.readouterr().err), "it began anew"
    assert noted(output)["status"] == "complete"
    for name in ("last", "best"):
        assert tuned(output, name).digest() == tuned(alone, name).digest()
    for ours, theirs in zip(noted(output)["epochs"], noted(alone)["epochs"], strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    assert not launcher.leftovers()


@pytest.mark.slow
def test_one_rank_that_stops_or_dies_ends_all_and_any_number_resumes(
    alone: Path, data: dict[str, Path], launcher: Launcher, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    arguments = command(data, output, *LOCAL, "--save-every", "1")
    process = start(launcher, *arguments, output=output, ranks=2)
    os.kill(launcher.rank(1), signal.SIGUSR1)
    _, err = process.communicate(timeout=TIMEOUT)
    assert "because rank 1 got SIGUSR1" in noted(output)["error"]["message"], err
    process = start(launcher, *arguments, output=output, ranks=2)
    os.kill(launcher.rank(1), signal.SIGKILL)
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert "lost contact with the other ranks" in noted(output)["error"]["message"], err
    assert run_here(*arguments) == 0
    assert_close(tuned(output), tuned(alone))
    assert not launcher.leftovers()


@pytest.mark.slow
def test_the_readmes_command_learns_digits(launcher: Launcher, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "dist_eval" / "tuning" / "README.md").read_text(encoding="utf-8")
    [options] = re.findall(r"uv run dist-eval tune --nproc-per-node 2 (.*?)\n```", text, re.DOTALL)
    run(launcher, "-m", "dist_eval.tuning", *options.replace("\\\n", " ").split(), "--output", str(tmp_path), ranks=2)
    assert noted(tmp_path)["best"]["value"] >= 0.95
    assert not launcher.leftovers()


def test_a_complete_run_is_left_alone_and_another_one_is_refused(
    alone: Path, data: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    before = (alone / "tuning.json").read_bytes(), tuned(alone).digest()
    assert run_here(*command(data, alone, *LOCAL)) == 0
    said = capfd.readouterr().out
    assert "already contains the checkpoints of this run" in said
    assert f"best: {alone / 'best'} (epoch " in said
    for further, differs in (
        (("--learning-rate", "0.5"), "--learning-rate"),
        (("--seed", "3"), "--seed"),
        (("--eval-dataset", str(data["train"])), "evaluation data"),
    ):
        assert run_here(*command(data, alone, *LOCAL, *further)) == 1
        said = capfd.readouterr().err
        assert f"holds the results of another run: it differs in the {differs}." in said
        assert "Traceback" not in said
    assert ((alone / "tuning.json").read_bytes(), tuned(alone).digest()) == before


def test_a_complete_run_whose_checkpoint_was_removed_says_so(
    alone: Path, data: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(alone, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "best")
    assert run_here(*command(data, tmp_path / "copy", *LOCAL)) == 1
    assert "/best has no model.safetensors, although the run is complete" in capfd.readouterr().err


def test_overwrite_starts_afresh(data: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "out"
    short = ("--epochs", "1", "--tuning-mode", "ptune")
    assert run_here(*command(data, output, *LOCAL, *short)) == 0
    assert tuned(output).tuning_mode == "ptune"
    assert run_here(*command(data, output, *LOCAL, *short, "--seed", "1", "--overwrite")) == 0
    assert len(noted(output)["epochs"]) == 1
    assert noted(output)["config"]["seed"] == 1


@pytest.mark.parametrize(
    ("further", "words"),
    [
        (("--eval-dataset", "/nowhere.csv"), "There is no file /nowhere.csv"),
        (("--label-column", "class"), "has no column 'class'"),
        (("--num-labels", "4"), "contains the class number 9, but --num-labels 4 allows only 0 to 3"),
        (("--model", "/nowhere"), "The folder /nowhere"),
        (("--pre-seq-len", "512"), "512 prompt tokens leave no room for a text"),
        (("--tracker", "mlflow"), "--tracker mlflow needs the package mlflow, which is not installed"),
        (("--max-length", "3", "--strict"), "more than --max-length 3"),
        (("--learning-rate", "1e30", "--max-grad-norm", "0"), "not finite"),
    ],
)
def test_errors_are_reported_once_and_in_the_folder(
    further: tuple[str, ...], words: str, data: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run_here(*command(data, output, *LOCAL, *further)) == 1
    printed = capfd.readouterr()
    assert words in printed.err
    assert "Traceback" not in printed.err
    notes = noted(output) if (output / "tuning.json").exists() else None
    assert notes is None or (notes["status"], words in notes["error"]["message"]) == ("failed", True)
