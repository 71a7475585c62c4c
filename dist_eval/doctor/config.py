"""The options of the doctor: those of a run, and a few of its own."""

from __future__ import annotations

from dataclasses import dataclass

from dist_eval.errors import ConfigError
from dist_eval.options.commandline import WHERE, Command
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import option

PROGRAM = "dist-eval doctor"
_LONGEST_CHECK = 3600.0


@dataclass(kw_only=True)
class DoctorConfig(EvaluationConfig):
    """The options of the doctor.

    Raises:
        ConfigError: on construction, when an option is out of range, missing, or contradicts another.
    """

    expect_hosts: int | None = option(
        None, "expected number of hosts (default: from the scheduler or torchrun)", group="doctor", metavar="N"
    )
    rendezvous: str | None = option(
        None,
        "without torchrun: the planned rendezvous of the hosts, to check whether this host reaches it",
        group="doctor",
        metavar="HOST:PORT",
    )
    check_timeout: float = option(30.0, "longest time for each check", group="doctor", metavar="SECONDS")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expect_hosts is not None:
            self._check_range("expect_hosts", 1)
        if not 0 < self.check_timeout <= _LONGEST_CHECK:
            raise ConfigError(f"--check-timeout must be more than 0 and at most {_LONGEST_CHECK:g} seconds.")
        if self.rendezvous is not None:
            split_address(self.rendezvous)

    @property
    def uses_swarm(self) -> bool:
        """Whether the run sends requests to servers."""
        return self.backend == "petals"

    @property
    def starts_swarm(self) -> bool:
        """Whether the run would start its own servers."""
        return self.uses_swarm and not self.initial_peers and self.swarm != "public"


def split_address(text: str) -> tuple[str, int]:
    """Splits HOST:PORT.

    Raises:
        ConfigError: the text is not an address.
    """
    host, _, port = text.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"--rendezvous: {text!r} is no address. It should look like 10.0.0.5:29500.")
    return host.strip("[]"), int(port)


DOCTOR = Command(
    program=PROGRAM,
    config=DoctorConfig,
    description="Checks what a run depends on, and sends no data: the hosts, the group of ranks, the output folder, "
    "the inputs and the swarm. It takes the options of the run.",
    examples=f"""\
examples:
  {PROGRAM} --nproc-per-node 4 --checkpoint TUNED --dataset test.csv \\
      --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity --output runs/sst2
  {PROGRAM} --demo --rendezvous 10.0.0.5:29500
""",
    usage=f"--checkpoint TUNED --dataset FILE\n{WHERE} [options]",
    nothing_asked=f"""\
The doctor takes the options of the run that it is to check:
  {PROGRAM} --model MODEL --checkpoint TUNED --dataset FILE --initial-peers ADDRESS...
Or, to check hosts and group alone: {PROGRAM} --demo --backend local   (all options: --help)""",
    groups={
        "what": ("what is to be evaluated", None),
        "figures": ("which figures", None),
        "doctor": ("the check itself", None),
    },
)
