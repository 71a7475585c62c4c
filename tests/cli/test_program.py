"""A rank's end is told to whoever reads its folder."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TIMEOUT, Launcher, results_of
from samples import config_for

from dist_eval.cli import program
from dist_eval.errors import RunError
from dist_eval.evaluation.context import RunContext
from dist_eval.metrics.predictions import prove_coverage
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.folder_lock import LOCK_FILE


@pytest.fixture(autouse=True)
def without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("signalled", "is_stopped"), [("SIGINT", True), ("SIGTERM", False)])
def test_an_interrupted_run_is_incomplete_and_stays_stopped_unless_torchrun_may_restart_it(
    signalled: str, is_stopped: bool, tmp_path: Path
) -> None:
    def run(context: RunContext[Any, EvaluationFolder]) -> None:
        context.folder.open()
        raise KeyboardInterrupt(signalled)

    config = config_for(tmp_path / "run")
    assert program.run(config, tmp_path, None, lambda config: (run, EvaluationFolder)) == 130
    assert results_of(tmp_path / "run")["status"] == "incomplete"
    assert (tmp_path / "run" / "STOP").exists() == is_stopped


def test_a_dataset_that_is_not_covered_is_a_failure_with_its_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(context: RunContext[Any, EvaluationFolder]) -> None:
        context.folder.open()
        prove_coverage(np.asarray([0, 1, 1, 3]), 6)

    config = config_for(tmp_path / "run")
    assert program.run(config, tmp_path, None, lambda config: (run, EvaluationFolder)) == 1
    assert "1 repeated (1); 3 missing (2, 4, 5)" in capsys.readouterr().err
    found = results_of(tmp_path / "run")
    assert (found["status"], found["error"]["transient"]) == ("failed", False)
    assert found["coverage"] == {"expected": 6, "seen": 3, "duplicates": 1, "missing": 3, "failed": 0}


PRINTS_A_TABLE = """
import sys
from dist_eval.cli import program
from dist_eval.options.config import EVALUATION
from dist_eval.runs.evaluation_folder import EvaluationFolder

def run(context):
    context.folder.open()
    print("evaluating", file=sys.stderr, flush=True)
    print("the table", flush=True)

program.main(EVALUATION, lambda config: (run, EvaluationFolder))
"""


def test_a_run_whose_table_cannot_be_printed_is_complete(launcher: Launcher, tmp_path: Path) -> None:
    options = ["--demo", "--output", str(tmp_path)]
    with Path("/dev/full").open("w") as full:
        run = launcher.start("-c", PRINTS_A_TABLE, *options, preloaded=True, stdout=full)
        _, said = run.communicate(timeout=TIMEOUT)
    assert run.returncode == 0
    assert said == "evaluating\ndist_eval: standard output cannot be written: No space left on device.\n"


def test_nobody_else_can_open_the_folder_until_the_end_is_recorded_there(tmp_path: Path) -> None:
    answers: list[str] = []

    class Folder(EvaluationFolder):
        def fail(self, *args: Any, **options: Any) -> bool:
            answers.append(subprocess.run(other, capture_output=True, text=True, check=False).stderr)
            return super().fail(*args, **options)

    def run(context: RunContext[Any, EvaluationFolder]) -> None:
        with context:
            raise RunError("the reason")

    config = config_for(tmp_path / "run")
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    other = [sys.executable, "-c", code, str(tmp_path / "run" / "journal" / LOCK_FILE)]
    assert program.run(config, tmp_path, None, lambda config: (run, Folder)) == 1
    assert results_of(tmp_path / "run")["error"]["message"] == "the reason"
    assert "BlockingIOError" in answers[0]
    assert not subprocess.run(other, capture_output=True, check=False).stderr


def test_full_shared_memory_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(context: RunContext[Any, EvaluationFolder]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as of multiprocessing.Lock()

    assert program.run(config_for(tmp_path / "run"), tmp_path, None, lambda config: (run, EvaluationFolder)) == 1
    said = capsys.readouterr().err
    assert said.startswith("dist_eval: No space left for a temporary file or for shared memory (/dev/shm)")
    assert said.count("\n") == 1
