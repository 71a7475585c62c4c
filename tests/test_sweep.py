"""`dist-eval sweep`: real runs, one after the other, also where some fail; one table, and the differences."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, Launcher, fork_server, run_here, wait_for, wait_until_under_way

from dist_eval import demo
from dist_eval.cluster.run_lists import read_sweep
from dist_eval.sweep import main


@pytest.fixture
def preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has runs started with interpreters that have everything imported."""
    monkeypatch.setattr(sys, "executable", fork_server().command)
    for name, value in fork_server().environment.items():
        monkeypatch.setenv(name, value)


def write_grid(folder: Path, **options: Any) -> Path:
    shared = {"backend": "local", "model": str(demo.BASE_MODEL), "checkpoint": str(demo.CHECKPOINT), "limit": 60}
    path = folder / "grid.yaml"
    path.write_text(json.dumps({**shared, "report": "none", "dataset": str(demo.TEST_DATA), **options}))
    return path


@pytest.mark.usefixtures("preloaded")
def test_runs_are_compared_that_differ_in_one_option_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.csv")
    grid = write_grid(
        tmp_path, grid={"dataset": {"digits": str(demo.TEST_DATA), "missing": missing}, "max-length": [40, 256]}
    )
    sweep = [str(grid), "--output", str(tmp_path / "runs"), "--compare", "max-length", "--metric", "accuracy"]
    assert main([*sweep, "--write", str(tmp_path / "runs.csv")]) == 1
    printed, errors = capfd.readouterr()
    _, _, differences = printed.partition("Differences:\n")
    head, *rows = [line.split() for line in differences.splitlines()]
    assert [*head[:3], *head[-3:]] == ["run", "against", "metric", "p", "(Holm,", "1)"]
    assert [row[:3] for row in rows] == [["digits-max-length=256", "digits-max-length=40", "accuracy"]]
    assert "2 of 4 runs are complete" in printed and errors.count("missing.csv") == 2
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 5


@pytest.mark.usefixtures("preloaded")
def test_results_of_other_options_are_neither_compared_nor_a_success(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    grid: dict[str, Any] = {"max-length": [200, 256]}
    sweep = [str(write_grid(tmp_path, grid=grid, limit=20)), "--output", str(tmp_path / "runs")]
    assert main(sweep) == 0
    assert "Differences:" in capfd.readouterr().out
    write_grid(tmp_path, grid=grid, limit=30)
    assert main(sweep) == 1
    printed, _ = capfd.readouterr()
    assert printed.count("not compared: max-length=") == 2 and "Differences:" not in printed


@pytest.mark.slow
def test_a_killed_sweep_goes_on_to_the_same_bytes(tmp_path: Path, launcher: Launcher) -> None:
    budget, lengths, runs = {"token-budget": 256}, (40, 256), tmp_path / "runs"
    grid = write_grid(tmp_path, grid={"max-length": [*lengths]}, limit=None, **budget)
    command = "-m", "dist_eval.sweep", str(grid), "--output", str(runs)
    sweep = launcher.start(*command)
    wait_until_under_way(runs / "max-length=256", sweep)
    sweep.send_signal(signal.SIGKILL)
    sweep.communicate(timeout=TIMEOUT)
    assert sweep.returncode == -signal.SIGKILL
    assert wait_for(lambda: not launcher.processes()), "its run ends with it"
    done = launcher.run(*command, preloaded=False)
    assert done.returncode == 0, done.stderr
    for length in lengths:
        single, alone = tmp_path / f"{length}.yaml", tmp_path / str(length)
        write_grid(tmp_path, limit=None, **budget, **{"max-length": length}).rename(single)
        assert run_here("-m", "dist_eval", "--config", str(single), "--output", str(alone)) == 0
        found = (runs / f"max-length={length}" / "predictions.parquet").read_bytes()
        assert found == (alone / "predictions.parquet").read_bytes()
    assert not launcher.leftovers()


def test_printed_is_a_line_for_each_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = {"plain": "{text}", "quoted": 'It\'s "{text}"\n#'}
    grid = write_grid(tmp_path, checkpoint=None, grid={"prompt": prompts, "label-words": {"words": ["no", "yes"]}})
    assert main([str(grid), "--output", str(tmp_path), "--print"]) == 0
    listed = tmp_path / "runs.txt"
    listed.write_text(capsys.readouterr().out)
    assert [entry and entry.name for entry in read_sweep(listed)] == ["plain-words", "quoted-words"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grid": {"seed": [0, 1]}, "sed": 1}, "run seed=0: there is no option 'sed'"),
        ({"grid": {"seed": [0]}, "nproc-per-node": 2}, "nproc-per-node is an option of `dist-eval sweep`"),
        ({"grid": {"max-length": [1, 0]}}, "run max-length=0: max_length must"),
        ({"grid": {"seed": [0]}, "command": "harness"}, "run seed=0: there is no option 'checkpoint'"),
    ],
)
def test_options_are_checked_before_anything_starts(
    options: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(write_grid(tmp_path, **options)), "--output", str(tmp_path / "runs")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_tunings_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("command: tune\nmodel: base\ndataset: train.csv\nbackend: local\ngrid: {seed: [0, 1]}\n")
    assert main([str(grid), "--output", str(tmp_path / "runs"), "--compare", "seed"]) == 2
    assert "tunings cannot be compared" in capsys.readouterr().err
