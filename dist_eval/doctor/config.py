"""The options of the doctor: those of a run, and a few of its own."""

from __future__ import annotations

from dataclasses import dataclass

from dist_eval.options.commandline import WHERE, Command
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import option

PROGRAM = "dist-eval doctor"


@dataclass(kw_only=True)
class DoctorConfig(EvaluationConfig):
    """The options of the doctor."""

    expect_hosts: int | None = option(
        None, "expected number of hosts (default: from the scheduler or torchrun)", group="doctor", metavar="N"
    )
    check_timeout: float = option(30.0, "longest time for each check", group="doctor", metavar="SECONDS")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_range("expect_hosts", 1)
        self._check_seconds("check_timeout")


DOCTOR = Command(
    program=PROGRAM,
    config=DoctorConfig,
    description="Checks what a run depends on, and sends no data: the hosts, the group of ranks, the output folder, "
    "the inputs and the swarm. It takes the options of the run.",
    examples=f"""\
examples:
  {PROGRAM} --nproc-per-node 4 --checkpoint TUNED --dataset test.csv \\
      --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --output runs/sst2
  {PROGRAM} --demo --backend local
""",
    usage=f"--checkpoint TUNED --dataset FILE\n{WHERE} [options]",
    nothing_asked=f"""\
The doctor takes the options of the run that it is to check:
  {PROGRAM} --model MODEL --checkpoint TUNED --dataset FILE --initial-peers ADDRESS...
Or, to check hosts and group alone: {PROGRAM} --demo --backend local   (all options: --help)""",
    groups={
        "what": ("what is to be evaluated", None),
        "metrics": ("which metrics", None),
        "doctor": ("the check itself", None),
    },
)
