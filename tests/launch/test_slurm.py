"""The batch scripts of launch/slurm, as they stand, on a real Slurm."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import real_slurm
from conftest import Launcher, wait_for
from real_slurm import RealSlurm

from dist_eval import demo

SCRIPTS = Path(__file__).parents[2] / "launch" / "slurm"
ROWS_REPEATED = 24
SECTIONS = ("metrics", "undefined", "intervals", "per_class", "confusion_matrix", "coverage", "data", "plan")

pytestmark = pytest.mark.skipif(bool(real_slurm.missing()), reason=f"a real Slurm {real_slurm.missing()}")


@pytest.fixture(scope="module")
def slurm() -> Iterator[RealSlurm]:
    folder = Path(tempfile.mkdtemp(prefix="s-"))
    launcher = Launcher(folder / "tmp")
    launcher.temporary.mkdir()
    root = str(Path(__file__).parents[2])
    environment = {**launcher.environment, "PYTHON": sys.executable, "PYTHONPATH": root, "RANKS": "1"}
    cluster = RealSlurm(folder, environment)
    try:
        cluster.start()
        yield cluster
        assert wait_for(lambda: not of_jobs(launcher), 60), of_jobs(launcher)
        assert not list(launcher.temporary.iterdir())
    finally:
        cluster.end()
        left = launcher.processes()
        launcher.end()
        shutil.rmtree(folder, ignore_errors=True)
    assert not left


def of_jobs(launcher: Launcher) -> list[str]:
    """Processes that are not Slurm's own."""
    own = ("slurmctld", "slurmd", "unshare", "bash -c mount")
    return [command for command in launcher.processes().values() if not command.startswith(own)]


@pytest.fixture(scope="module")
def config(slurm: RealSlurm) -> str:
    """Some seconds of work."""
    header, *rows = demo.TEST_DATA.read_text().splitlines()
    data, path = slurm.folder / "long.csv", slurm.folder / "long.yaml"
    data.write_text("\n".join([header, *rows * ROWS_REPEATED]) + "\n")
    options = {"model": demo.BASE_MODEL, "checkpoint": demo.CHECKPOINT, "dataset": data, "backend": "local"}
    path.write_text("".join(f"{name}: {value}\n" for name, value in options.items()))
    return str(path)


@pytest.fixture(scope="module")
def undisturbed(slurm: RealSlurm, config: str) -> Path:
    output = slurm.folder / "undisturbed"
    job = slurm.submit(SCRIPTS / "evaluate.sbatch", options=SMALL, RUN=str(output), CONFIG=config)
    ended = slurm.wait(job)
    assert ended["ExitCode"] == "0:0", slurm.logs()
    assert ended["Restarts"] == "0"
    return output


SMALL = ("--cpus-per-task=2", "--time=10")


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def journal_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "journal").glob("*.batches"))


def assert_equal_to(undisturbed: Path, output: Path) -> None:
    assert results_of(output)["status"] == "complete"
    assert (output / "predictions.parquet").read_bytes() == (undisturbed / "predictions.parquet").read_bytes()
    for section in SECTIONS:
        assert json.dumps(results_of(output)[section]) == json.dumps(results_of(undisturbed)[section]), section


def test_a_job_on_two_nodes_completes(slurm: RealSlurm, undisturbed: Path) -> None:
    results = results_of(undisturbed)
    assert [rank["host"] for rank in results["ranks"]] == ["n1", "n2"]
    assert all(rank["samples"] for rank in results["ranks"])
    logs = {path.name.rsplit("-", 1)[-1] for path in slurm.folder.glob("slurm-*-*.log")}
    assert logs == {"n1.log", "n2.log"}
    assert "accuracy" in slurm.logs("slurm-*-n?.log")


def test_a_job_that_gets_its_signal_stops_is_requeued_and_completes(
    slurm: RealSlurm, undisturbed: Path, config: str
) -> None:
    output = slurm.folder / "signalled"
    job = slurm.submit(SCRIPTS / "evaluate.sbatch", options=SMALL, RUN=str(output), CONFIG=config)
    assert wait_for(lambda: journal_size(output) > 2000)
    slurm.ask("scancel", "--signal=USR1", "--batch", job)
    assert wait_for(lambda: results_of(output)["status"] == "incomplete")
    stopped = results_of(output)
    assert 0 < stopped["coverage"]["seen"] < stopped["coverage"]["expected"]
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1"), slurm.logs()
    assert_equal_to(undisturbed, output)
    assert sum(rank["resumed"] for rank in results_of(output)["ranks"]) >= stopped["coverage"]["seen"]


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_job_that_loses_a_node_is_requeued_and_completes(
    node: str, slurm: RealSlurm, undisturbed: Path, config: str
) -> None:
    output = slurm.folder / f"lost-{node}"
    job = slurm.submit(SCRIPTS / "evaluate.sbatch", options=SMALL, RUN=str(output), CONFIG=config)
    assert wait_for(lambda: journal_size(output) > 2000)
    slurm.kill_node(node)
    slurm.wait(job, "PENDING")
    slurm.start_node(node)
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1"), slurm.logs()
    assert_equal_to(undisturbed, output)
    assert sum(rank["resumed"] for rank in results_of(output)["ranks"]) > 0
