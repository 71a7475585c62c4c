"""Calls of a job to Slurm, and its errors without one; a real Slurm is in `tests/launch`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_eval.errors import ConfigError, RunError
from dist_eval.process import slurm

JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "node-[07-09]"}


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, to be written."""
    path = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return path


def answers(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)


def test_the_rendezvous_is_on_the_first_node_with_an_id_of_this_start(scontrol: Path) -> None:
    answers(scontrol, '[ "$*" = "show hostnames node-[07-09]" ] && printf "node-07\\nnode-08\\nnode-09\\n"')
    found = slurm.rendezvous(JOB)
    host, port = found["PET_RDZV_ENDPOINT"].split(":")
    assert host == "node-07"
    assert 1024 < int(port) < 65536
    assert (found["PET_NNODES"], found["PET_RDZV_ID"], found["PET_MAX_RESTARTS"]) == ("3", "17.0", "0")
    assert slurm.rendezvous({**JOB, "SLURM_RESTART_COUNT": "2"})["PET_RDZV_ID"] == "17.2"


@pytest.mark.parametrize(
    ("script", "words"),
    [("exit 0", "lists no nodes"), ("echo 'Invalid hostlist' >&2; exit 1", "Invalid hostlist"), (None, "scontrol")],
)
def test_without_a_first_node_there_is_no_fallback(script: str | None, words: str, scontrol: Path) -> None:
    if script:
        answers(scontrol, script)
    elif any((Path(folder) / "scontrol").exists() for folder in ("/usr/bin", "/usr/local/bin", "/bin")):
        pytest.skip("there is a real scontrol")
    with pytest.raises(RunError, match=words):
        slurm.rendezvous(JOB)


def test_outside_of_a_job_the_missing_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"SLURM_JOB_NODELIST.*sbatch"):
        slurm.rendezvous({})
    with pytest.raises(ConfigError, match=r"SLURM_PROCID.*srun"):
        slurm.task({})


def test_a_task_of_an_array_is_requeued_alone(scontrol: Path, tmp_path: Path) -> None:
    answers(scontrol, f'echo "$*" > {tmp_path}/asked')
    slurm.requeue({**JOB, "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "4"})
    assert (tmp_path / "asked").read_text() == "requeue 17_4\n"
    slurm.requeue(JOB)
    assert (tmp_path / "asked").read_text() == "requeue 17\n"


TASK = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURMD_NODENAME": "n7"}


@pytest.mark.parametrize("address", ["10.9.0.7", "n7-ib"])
def test_a_task_has_a_part_and_an_address(address: str, scontrol: Path) -> None:
    said = f"NodeName=n7 Arch=x86_64 CoresPerSocket=1 NodeAddr={address} NodeHostName=n7 Version=22.05.8"
    answers(scontrol, f'[ "$*" = "show node -o n7" ] && echo "{said}"')
    assert slurm.task(TASK) == (1, 4, address)


def test_a_node_without_an_address_is_an_error(scontrol: Path) -> None:
    answers(scontrol, "echo NodeName=n7 State=DOWN")
    with pytest.raises(RunError, match="no address of the node n7"):
        slurm.task(TASK)
