"""A run as a batch job: it is asked to stop until it does, and the exit status reflects the outcome."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, wait_for

from dist_eval.arguments.commandline import parse_args
from dist_eval.cluster.job import main, outcome_of
from dist_eval.options.config import EVALUATION
from dist_eval.runs.outcome import Outcome

USR1, TERM = signal.SIGUSR1, signal.SIGTERM
RUN = Path("runs/a")
JobHere = Callable[..., tuple[int, str]]

COMMAND = """
import json, pathlib, sys, time
run = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
(run / "journal").mkdir(parents=True, exist_ok=True)
write = lambda status: (run / "results.json").write_text(json.dumps({"status": status}))
write("running")
time.sleep(float(sys.argv[1]))
if sys.argv[2] == "deaf":
    sys.exit(1)
(run / "STOP").unlink(missing_ok=True)  # as a start does that has just begun
(run / "ready").touch()
while not (run / "STOP").exists():
    time.sleep(0.02)
(run / "journal" / "a.batches").write_bytes(b"a")
write("incomplete")
sys.exit(1)
"""


def outcome(status: str, version: int = 1, progress: int = 0, transient: bool = True) -> Outcome:
    return Outcome(RUN, status, "why", transient, (version,), frozenset({("a.batches", progress, 0)}))


BEFORE = outcome("running")


@pytest.mark.parametrize(
    ("after", "command", "stop_signal", "status", "requeue"),
    [
        (outcome("complete", 2, 1), 0, None, 0, False),
        (outcome("complete", 2, 1), 1, None, 0, False),
        (outcome("complete", 2, 1), 1, USR1, 0, False),
        (outcome("incomplete", 2, 1), 1, USR1, 75, True),
        (outcome("incomplete", 2), 1, USR1, 75, True),
        (outcome("incomplete", 2, 1), 1, TERM, 75, False),
        (outcome("incomplete", 2, 1), 1, None, 75, True),
        (outcome("incomplete", 2, 1, transient=False), 1, None, 75, False),
        (outcome("incomplete", 2), 1, None, 1, False),
        (outcome("running", 2, 1), 137, None, 75, True),
        (outcome("running", 2), 137, None, 1, False),
        (outcome("running", 2, 1), None, USR1, 75, True),
        (outcome("failed", 2, 1), 1, None, 75, True),
        (outcome("failed", 2, 1, transient=False), 1, None, 1, False),
        (outcome("failed", 2, 1, transient=False), 1, USR1, 1, False),
        (BEFORE, 1, None, 1, False),
        (BEFORE, 1, USR1, 75, True),
        (BEFORE, 1, TERM, 75, False),
        (BEFORE, 75, None, 75, True),  # only the command got the signal
        (outcome("incomplete", 2), 75, None, 75, True),
    ],
)
def test_each_outcome_is_recognized(
    after: Outcome, command: int | None, stop_signal: int | None, status: int, requeue: bool
) -> None:
    verdict = outcome_of(BEFORE, after, command, stop_signal)
    assert (verdict.exit_status, verdict.requeue) == (status, requeue)
    assert str(RUN) in verdict.message


def test_a_time_limit_that_is_too_short_for_any_progress_does_not_loop_forever() -> None:
    def again(after: Outcome, command: int | None) -> tuple[int, bool]:
        verdict = outcome_of(BEFORE, after, command, USR1, is_first=False)
        return verdict.exit_status, verdict.requeue

    assert again(outcome("incomplete", 2, 1), 1) == again(outcome("running", 2, 1), None) == (75, True)
    assert again(outcome("complete", 2), 0) == (0, False)
    interrupted = outcome_of(BEFORE, BEFORE, 75, None, is_first=False)
    assert (interrupted.exit_status, interrupted.requeue) == (75, False)
    assert again(outcome("incomplete", 2), 1) == again(outcome("running", 2), None) == again(BEFORE, 1) == (1, False)


def test_an_earlier_completion_does_not_hide_an_error() -> None:
    complete = outcome("complete")
    assert outcome_of(complete, complete, 0, None).exit_status == 0
    assert outcome_of(complete, complete, 1, None).exit_status == 1


def test_a_command_that_evaluates_nothing_fails() -> None:
    missing = Outcome(RUN, "missing", "there is no results.json")
    assert outcome_of(missing, missing, 0, None).exit_status == 1


def start(*arguments: Any, **kwargs: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dist_eval.cluster.job", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


@pytest.fixture
def job_here(capfd: pytest.CaptureFixture[str]) -> JobHere:
    """Runs a job in this process, whose signals it does not need; returns the exit status and what was printed."""
    return lambda *arguments: (main([*map(str, arguments)]), capfd.readouterr().err)


@pytest.mark.parametrize("number", [USR1, TERM, signal.SIGINT])
def test_a_run_that_is_just_starting_is_stopped_too(number: signal.Signals, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = start("--output", run, "--", sys.executable, "-c", COMMAND, 1.5, "hears")
    assert wait_for(lambda: (run / "results.json").exists())
    job.send_signal(number)
    _, err = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 75, err
    assert f"{run} is incomplete" in err


def test_the_command_of_a_killed_job_is_stopped(tmp_path: Path) -> None:
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('stopped').touch(), sys.exit()))\n"
        "pathlib.Path('began').touch()\n"
        "time.sleep(60)"
    )
    with start("--output", tmp_path / "run", "--", sys.executable, "-c", program, cwd=tmp_path) as job:
        assert wait_for(lambda: (tmp_path / "began").exists())
        job.kill()
    assert wait_for(lambda: (tmp_path / "stopped").exists())


@pytest.fixture
def in_slurm(tmp_path: Path) -> dict[str, str]:
    """Variables of a job, and an scontrol that records its arguments."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\necho node\n')
    scontrol.chmod(0o700)
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node"}
    return {**os.environ, **job, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_where_requeueing_is_refused_the_status_says_that_the_run_can_be_resumed(
    in_slurm: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho node; [ "$1" = show ] || { echo disabled >&2; exit 1; }\n')
    run = tmp_path / "run"
    job = start("--slurm", "--output", run, "--", sys.executable, "-c", COMMAND, 0, "hears", env=in_slurm)
    assert wait_for(lambda: (run / "ready").exists())
    job.send_signal(USR1)
    _, err = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 75, err
    assert "not requeued by this script: scontrol requeue 17 failed: disabled." in err


@pytest.mark.parametrize("patience", [90, 0.1])
def test_with_slurm_it_is_requeued_even_if_the_run_does_not_end_in_time(
    patience: float, in_slurm: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-c", COMMAND, *((0, "hears") if patience > 1 else (3, "deaf"))]
    job = start("--slurm", "--patience", patience, "--output", run, "--", *command, env=in_slurm)
    assert wait_for(lambda: (run / "results.json").exists())
    job.send_signal(USR1)
    _, err = job.communicate(timeout=TIMEOUT)
    assert job.returncode == 75, err
    assert (tmp_path / "asked").read_text().splitlines() == ["show hostnames node", "requeue 17"]
    assert ("not complete" in err) == (patience < 1)


def test_a_requeued_job_does_not_overwrite(
    in_slurm: dict[str, str], tmp_path: Path, job_here: JobHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in in_slurm.items():
        monkeypatch.setenv(name, value)
    for count, further in ((None, ""), ("0", ""), ("2", " --no-overwrite")):
        if count is not None:
            monkeypatch.setenv("SLURM_RESTART_COUNT", count)
        job_here("--slurm", "--output", "run", "--", "sh", "-c", 'echo "$@" > got; exit 1', "sh", "--overwrite")
        assert (tmp_path / "got").read_text() == f"--overwrite --output run{further}\n"
    run = ["--model", "m", "--checkpoint", "c", "--dataset", "d", "--backend", "local", "--overwrite", "--no-overwrite"]
    assert parse_args(run, EVALUATION).overwrite is False


@pytest.mark.parametrize(
    ("words", "status"),
    [("dist_eval.doctor", 1), ("dist_eval.planning", 0), ("bin/dist-eval doctor", 2), ("dist-eval plan", 0)],
)
def test_the_exit_status_of_what_comes_before_a_run_is_passed_on(
    words: str, status: int, tmp_path: Path, job_here: JobHere
) -> None:
    command = ("sh", "-c", f"exit {status}", *words.split())
    assert job_here("--output", tmp_path / "run", "--", *command) == (status, "")


def test_a_line_of_the_list_determines_the_run(tmp_path: Path, job_here: JobHere) -> None:
    listed, got = tmp_path / "runs.txt", tmp_path / "got"
    listed.write_text("# name\nb --checkpoint 'tuned b'\n")
    asked = ("--output", tmp_path / "runs", "--list", listed, "--line", 2)
    status, err = job_here(*asked, "--", "sh", "-c", f"printf '%s\\n' \"$@\" > {got}; exit 1", "sh")
    assert got.read_text().splitlines() == ["--output", str(tmp_path / "runs" / "b"), "--checkpoint", "tuned b"]
    assert status == 1 and "the command ended with status 1 before it opened" in err
    status, err = job_here(*asked[:-1], 3, "--", "false")
    assert status == 2 and "has no line 3: it has 2" in err
    status, err = job_here(*asked[:-1], 1, "--", "false")
    assert status == 0 and "has no run" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "x", "--list", "y", "--", "true"], "--list and --line must be given together"),
        (["--output", "x", "--", "/no/such/program"], "/no/such/program cannot be started"),
        (["--output", "x", "--slurm", "--", "true"], "the environment variable SLURM_JOB_NODELIST is missing"),
    ],
)
def test_wrong_options_are_one_clear_message(
    arguments: list[str], words: str, tmp_path: Path, job_here: JobHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    status, err = job_here(*arguments)
    assert status == 2
    assert words in err and len(err.splitlines()) == 1


def test_it_starts_without_large_libraries() -> None:
    program = "import sys, dist_eval.cluster.job, dist_eval.summary.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"numpy", "torch", "hivemind", "petals", "transformers"}.isdisjoint(done.stdout.split())
