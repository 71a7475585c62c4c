"""Slurm: the rendezvous of a job's nodes, the number and address of a task, and requeueing.

Reads Slurm's environment variables and calls `scontrol`; a missing variable is an error.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from dist_eval.errors import ConfigError, RunError
from dist_eval.process.ports import free_ports

_TIMEOUT_SECONDS = 60.0


def rendezvous(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns torchrun's rendezvous for the nodes of a job; this process runs on the first node.

    The result is torchrun's environment variables (PET_ and the name of an option). The port is free on this node, and
    the id excludes processes of other jobs and of earlier starts of this job.
    """
    nodes = _scontrol("show", "hostnames", _variable(environment, "SLURM_JOB_NODELIST")).split()
    if not nodes:
        raise RunError("Slurm lists no nodes of this job (scontrol show hostnames).")
    return {
        "PET_NNODES": str(len(nodes)),
        "PET_MAX_RESTARTS": "0",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{nodes[0]}:{free_ports('0.0.0.0', 1)[0]}",
        "PET_RDZV_ID": f"{_variable(environment, 'SLURM_JOB_ID')}.{restarts(environment)}",
    }


def task(environment: Mapping[str, str]) -> tuple[int, int, str]:
    """Returns this task's number in its step (from 1), the number of tasks, and the address or name of its node.

    The address is Slurm's own (NodeAddr), because the node's name may resolve to loopback there.
    """
    number, count = (_variable(environment, name, "srun") for name in ("SLURM_PROCID", "SLURM_NTASKS"))
    node = _variable(environment, "SLURMD_NODENAME", "srun")
    address = re.search(r"\bNodeAddr=(\S+)", _scontrol("show", "node", "-o", node))
    if address is None:
        raise RunError(f"Slurm has no address of the node {node} (scontrol show node).")
    return int(number) + 1, int(count), address[1]


def restarts(environment: Mapping[str, str]) -> int:
    """Returns the number of restarts of a job."""
    return int(environment.get("SLURM_RESTART_COUNT") or 0)


def requeue(environment: Mapping[str, str]) -> None:
    """Requeues this job; Slurm ends its processes, including this one."""
    _scontrol("requeue", job_name(environment))


def job_name(environment: Mapping[str, str]) -> str:
    """Returns a unique id of this job; the id of an array's last task is also that of the whole array."""
    if "SLURM_ARRAY_TASK_ID" in environment:
        return f"{_variable(environment, 'SLURM_ARRAY_JOB_ID')}_{environment['SLURM_ARRAY_TASK_ID']}"
    return _variable(environment, "SLURM_JOB_ID")


def _variable(environment: Mapping[str, str], name: str, program: str = "sbatch") -> str:
    if not environment.get(name):
        raise ConfigError(f"--slurm: the environment variable {name} is missing. Start this command with {program}.")
    return environment[name]


def _scontrol(*words: str) -> str:
    try:
        finished = subprocess.run(
            ["scontrol", *words], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(f"scontrol {' '.join(words)} failed: {error}.") from error
    if finished.returncode:
        raise RunError(f"scontrol {' '.join(words)} failed: {finished.stderr.strip() or finished.returncode}.")
    return finished.stdout
