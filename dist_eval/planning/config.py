"""The options of `dist-eval plan`: those of a run, and a few of its own."""

from __future__ import annotations

from dataclasses import dataclass

from dist_eval.arguments.commandline import Command
from dist_eval.arguments.fields import option
from dist_eval.arguments.types import Seconds
from dist_eval.options.config import WHERE, EvaluationConfig

PROGRAM = "dist-eval plan"


@dataclass(kw_only=True)
class PlanConfig(EvaluationConfig):
    """The options of a plan."""

    probe: bool = option(True, "send nothing: no estimate of the time, and no swarm is needed", group="plan")
    probe_seconds: Seconds = option(60.0, "longest time for the probe", group="plan", metavar="SECONDS")
    json: bool = option(False, "print JSON instead of text", group="plan")

    def _check_where(self) -> None:
        if self.probe or self.initial_peers or self.swarm or self.backend == "local":
            super()._check_where()


PLAN = Command(
    program=PROGRAM,
    config=PlanConfig,
    description="Reports what a run with these options would send and cut, and which labels occur; and estimates its "
    "time from a probe: a few batches, whose answers are discarded. It takes the options of the run.",
    examples=f"""\
examples:
  {PROGRAM} --nproc-per-node 4 --model MODEL --checkpoint TUNED --dataset test.csv \\
      --initial-peers /ip4/10.0.0.5/tcp/31337/p2p/QmPeerIdentity
  {PROGRAM} --model MODEL --checkpoint TUNED --dataset test.csv --no-probe
  {PROGRAM} --demo
""",
    usage=f"--checkpoint TUNED --dataset FILE\n{WHERE} [options]",
    nothing_asked=f"""\
A plan takes the options of the run:
  {PROGRAM} --model MODEL --checkpoint TUNED --dataset FILE --initial-peers ADDRESS...
Or, without a swarm and an expected time: {PROGRAM} ... --no-probe   (all options: --help)""",
    is_run=True,
)
