"""The batch scripts of launch/slurm, as they stand, on a real Slurm."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import real_slurm
from conftest import Launcher, assert_equal_runs, journal_size, results_of, wait_for
from real_slurm import RealSlurm
from samples import digits

from dist_eval import demo

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "launch" / "slurm"
SMALL = ("--cpus-per-task=2", "--time=10")
ROWS_REPEATED = 12

pytestmark = [
    pytest.mark.skipif(bool(real_slurm.missing()), reason=f"a real Slurm {real_slurm.missing()}"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def jobs() -> Iterator[Launcher]:
    """Tells what jobs have left behind."""
    folder = Path(tempfile.mkdtemp(prefix="s-"))
    yield Launcher(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def slurm(jobs: Launcher) -> Iterator[RealSlurm]:
    folder = jobs.temporary / "slurm"
    folder.mkdir()
    environment = {**jobs.environment, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "RANKS": "1"}
    cluster = RealSlurm(folder, environment)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
        wait_for(lambda: not jobs.processes(), 30)
        left = jobs.processes()
        jobs.end()
    assert not left


@pytest.fixture(autouse=True)
def _nothing_is_left(slurm: RealSlurm, jobs: Launcher) -> Iterator[None]:
    yield
    assert wait_for(lambda: not processes_of(jobs), 60), processes_of(jobs)
    assert {path.name for path in jobs.temporary.iterdir() if not path.name.startswith("torchelastic_")} == {"slurm"}


def processes_of(jobs: Launcher) -> list[str]:
    """Processes that are not Slurm's own."""
    own = ("slurmctld", ": slurmscriptd", "slurmd", "unshare", "bash -c mount")
    return [command for command in jobs.processes().values() if not command.startswith(own)]


@pytest.fixture(scope="module")
def config(slurm: RealSlurm) -> str:
    """Some seconds of work."""
    data, path = digits(slurm.folder / "long.csv", times=ROWS_REPEATED), slurm.folder / "long.yaml"
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


def test_a_job_on_two_nodes_completes(slurm: RealSlurm, undisturbed: Path) -> None:
    results = results_of(undisturbed)
    assert {rank["host"] for rank in results["ranks"]} == {"n1", "n2"}
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
    assert_equal_runs(undisturbed, output)
    assert sum(rank["resumed"] for rank in results_of(output)["ranks"]) >= stopped["coverage"]["seen"]


def test_a_job_that_loses_a_node_is_requeued_and_completes(
    slurm: RealSlurm, jobs: Launcher, undisturbed: Path, config: str
) -> None:
    output = slurm.folder / "lost"
    job = slurm.submit(SCRIPTS / "evaluate.sbatch", options=SMALL, RUN=str(output), CONFIG=config)
    assert wait_for(lambda: journal_size(output) > 2000)
    slurm.lose_node("n2")
    slurm.wait(job, "PENDING")
    slurm.start_node("n2")
    ended = slurm.wait(job)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("COMPLETED", "0:0", "1"), slurm.logs()
    assert_equal_runs(undisturbed, output)
    assert sum(rank["resumed"] for rank in results_of(output)["ranks"]) > 0
    for folder in jobs.temporary.glob("dist_eval-*"):  # on a lost node nobody was left to remove it
        shutil.rmtree(folder)


def test_an_array_evaluates_each_line_and_its_summary_names_what_failed(slurm: RealSlurm, config: str) -> None:
    listed, runs = slurm.folder / "runs.txt", slurm.folder / "sweep"
    short = f"--dataset {demo.TEST_DATA}"
    listed.write_text(f"# name options\nshort {short}\nwrong {short} --label-column nothing\n")
    names = {"RUNS": str(runs), "LIST": str(listed), "CONFIG": config}
    array = slurm.submit(SCRIPTS / "array.sbatch", options=("--array=2-3", *SMALL), **names)
    after = (f"--dependency=afterany:{array}", "--time=10", "--cpus-per-task=1")
    summary = slurm.submit(SCRIPTS / "array.sbatch", options=after, **names)
    ended = slurm.wait(summary)
    assert ended["ExitCode"] == "1:0", slurm.logs()
    assert [slurm.job(f"{array}_{line}")["ExitCode"] for line in (2, 3)] == ["0:0", "1:0"]
    rows = json.loads((runs / "summary.json").read_text())
    assert [(Path(row["run"]).name, row["status"], row["examples"]) for row in rows] == [
        ("short", "complete", 596),
        ("wrong", "failed", None),
    ]
    assert rows[0]["accuracy"] == results_of(runs / "short")["metrics"]["accuracy"]
    assert "has no column 'nothing'" in rows[1]["reason"]
    assert rows[1]["reason"] in slurm.logs(f"slurm-{summary}.log")
    assert {path.name for path in runs.glob("summary.*")} == {"summary.csv", "summary.json", "summary.md"}


def test_an_array_evaluates_each_run_of_a_grid_and_the_sweep_finds_them_complete(slurm: RealSlurm) -> None:
    grid, runs = slurm.folder / "grid.yaml", slurm.folder / "grid"
    shared = {"model": str(demo.BASE_MODEL), "checkpoint": str(demo.CHECKPOINT), "dataset": str(demo.TEST_DATA)}
    where = {"swarm": {"swarm": "embedded"}, "local": {"backend": "local"}}
    grid.write_text(json.dumps({**shared, "limit": 100, "report": "none", "grid": {"where": where}}))
    sweep, names = (sys.executable, "-m", "dist_eval.sweep", str(grid)), {"RUNS": str(runs), "LIST": str(grid)}
    count = len(slurm.ask(*sweep, "--output", str(runs), "--print").splitlines())
    array = slurm.submit(SCRIPTS / "array.sbatch", options=(f"--array=1-{count}", *SMALL), **names)
    after = (f"--dependency=afterany:{array}", "--time=10", "--cpus-per-task=1")
    ended = slurm.wait(slurm.submit(SCRIPTS / "array.sbatch", options=after, **names))
    assert ended["ExitCode"] == "0:0", slurm.logs()
    rows = json.loads((runs / "summary.json").read_text())
    assert [(Path(row["run"]).name, row["examples"]) for row in rows] == [("swarm", 100), ("local", 100)]
    found = [(runs / name / "results.json").read_bytes() for name in where]
    printed = slurm.ask(*sweep, "--output", str(runs))
    assert "2 of 2 runs are complete" in printed and "Differences:" in printed, printed
    assert [(runs / name / "results.json").read_bytes() for name in where] == found


def submit_swarm(slurm: RealSlurm, output: Path) -> str:
    config = slurm.folder / "swarm.yaml"
    config.write_text(f"checkpoint: {demo.CHECKPOINT}\ndataset: {demo.TEST_DATA}\n")
    options = ("--gpus-per-task=0", "--ntasks=2", "--ntasks-per-node=1", *SMALL)
    names = {"RUN": str(output), "CONFIG": str(config), "MODEL": str(demo.BASE_MODEL), "DTYPE": "float32"}
    return slurm.submit(SCRIPTS / "swarm.sbatch", options=options, **names)


def test_a_cancelled_job_takes_its_swarm_along(slurm: RealSlurm) -> None:
    job = submit_swarm(slurm, slurm.folder / "cancelled")
    assert wait_for(lambda: list(slurm.folder.glob("*.peers.first")))
    slurm.ask("scancel", job)
    assert slurm.wait(job)["JobState"] == "CANCELLED"
    assert wait_for(lambda: not list(slurm.folder.glob("*.peers*")), 60)


def test_a_swarm_is_started_on_all_nodes_evaluated_on_and_ended(slurm: RealSlurm) -> None:
    output = slurm.folder / "swarm"
    ended = slurm.wait(submit_swarm(slurm, output))
    assert ended["ExitCode"] == "0:0", slurm.logs()
    results = results_of(output)
    assert results["status"] == "complete"
    assert results["swarm"]["replicas_per_block"] == [1, 1, 1, 1]
    assert len(results["swarm"]["servers"]) == 2
    assert wait_for(lambda: not list(slurm.folder.glob("*.peers*")), 60)
