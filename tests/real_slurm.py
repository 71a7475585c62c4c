"""A real Slurm on this machine: a controller and two nodes, each with a name, an address and processes of its own.

A node is a PID namespace: killing it ends all of its processes at once, as a power cut does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from conftest import TIMEOUT, wait_for

from dist_eval.process.ports import free_ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "unshare")
NODES = {"n1": "127.0.0.1", "n2": "127.0.0.2"}
NAMESPACES = ("--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={controller}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdTimeout=60
KillWait=4
MinJobAge=600
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Returns why there can be no Slurm here, nothing if there can."""
    if os.geteuid():
        return "needs root"
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return f"needs {', '.join(absent)} (Debian: slurmctld, slurmd, slurm-client)"
    tried = subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True)
    return "" if tried.returncode == 0 else f"needs namespaces ({tried.stderr.decode().strip()})"


@dataclass
class RealSlurm:
    """The cluster; start it with `start`, and `end` it.

    Attributes:
        folder: for all of its files, and those of its jobs.
        environment: of its programs and jobs.
    """

    folder: Path
    environment: dict[str, str]
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self) -> None:
        ports = free_ports("127.0.0.1", 1 + len(NODES))
        lines = [CONFIGURATION.format(controller=socket.gethostname(), port=ports[0], folder=self.folder)]
        for (name, address), port in zip(NODES.items(), ports[1:], strict=True):
            lines.append(f"NodeName={name} NodeHostname={name} NodeAddr={address} Port={port} CPUs=2 RealMemory=2000")
            (self.folder / name / "spool").mkdir(parents=True)
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        own = [line for line in Path("/etc/hosts").read_text().splitlines() if not line.endswith(tuple(NODES))]
        (self.folder / "hosts").write_text("\n".join([*own, *(f"{ip} {name}" for name, ip in NODES.items())]) + "\n")
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self._start("slurmctld", "slurmctld -D -i")
        for name in NODES:
            self.start_node(name)
        assert wait_for(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES), 60)

    def start_node(self, name: str) -> None:
        self._start(name, f"hostname {name} && slurmd -D -N {name}")

    def _start(self, name: str, command: str) -> None:
        script = f"mount --bind {self.folder}/hosts /etc/hosts && {command}"
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                ["unshare", *NAMESPACES, "bash", "-c", f"{script} & wait"],  # bash stays, and reaps
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill_node(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def lose_node(self, name: str) -> None:
        """Kills a node; a health check tells the controller, which by itself would wait for SlurmdTimeout."""
        self.kill_node(name)
        self.ask("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")

    def ask(self, *command: str, **variables: str) -> str:
        done = subprocess.run(
            command,
            env={**self.environment, **variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert done.returncode == 0 or command[0] != "sbatch", done.stderr
        return done.stdout.strip()

    def submit(self, script: Path, *arguments: str, options: tuple[str, ...] = (), **variables: str) -> str:
        """Submits a batch script as it stands; returns the job's id."""
        return self.ask("sbatch", "--parsable", *options, str(script), *arguments, **variables)

    def job(self, number: str) -> dict[str, str]:
        """Returns what Slurm knows of a job."""
        words = self.ask("scontrol", "show", "job", "-o", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number: str, *states: str, timeout: float = TIMEOUT) -> dict[str, str]:
        """Waits until a job has one of some states, or has ended; returns what Slurm knows of it then."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE")
        found = self.job(number)
        deadline = time.monotonic() + timeout
        while found["JobState"] not in (*states, *ended) and time.monotonic() < deadline:
            time.sleep(0.2)
            found = self.job(number)
        assert found["JobState"] in (states or ended), self.logs()
        return found

    def logs(self, pattern: str = "slurm-*.log") -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob(pattern)))

    def end(self) -> None:
        for name in list(self._processes):
            self.kill_node(name)
