"""The options of the doctor: those of a run, and a few of its own."""

from __future__ import annotations

from dataclasses import dataclass

from dist_eval.arguments.commandline import Command
from dist_eval.arguments.fields import option
from dist_eval.arguments.types import Count, Seconds
from dist_eval.options.config import WHERE, EvaluationConfig

PROGRAM = "dist-eval doctor"
PROBE_PREFIX = ".doctor-"
"""Beginning of the names of files that ranks write to see whether they share a folder."""


@dataclass(kw_only=True)
class DoctorConfig(EvaluationConfig):
    """The options of the doctor."""

    expect_hosts: Count | None = option(
        None, "expected number of hosts (default: from the scheduler or torchrun)", group="doctor", metavar="N"
    )
    check_timeout: Seconds = option(30.0, "longest time for each check", group="doctor", metavar="SECONDS")


DOCTOR = Command(
    program=PROGRAM,
    config=DoctorConfig,
    description="Checks the requirements of a run without sending data: the hosts, the group of ranks, the output "
    "folder, the inputs and the swarm. It takes the options of the run.",
    examples=f"""\
examples:
  {PROGRAM} --nproc-per-node 4 --checkpoint TUNED --dataset test.csv \\
      --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --output runs/sst2
  {PROGRAM} --demo --backend local
""",
    usage=f"--checkpoint TUNED --dataset FILE\n{WHERE} [options]",
    nothing_asked=f"""\
The doctor takes the options of the run to check:
  {PROGRAM} --model MODEL --checkpoint TUNED --dataset FILE --initial-peers ADDRESS...
Or, to check only hosts and group: {PROGRAM} --demo --backend local   (all options: --help)""",
    is_run=True,
)
