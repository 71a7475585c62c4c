"""`torchrun --nproc_per_node=N -m dist_eval.planning`: the command line of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_eval.cli import program
from dist_eval.planning.config import PLAN

if TYPE_CHECKING:
    from dist_eval.planning.config import PlanConfig
    from dist_eval.runs.run_folder import NoFolder


def load(config: PlanConfig) -> tuple[program.RunFunction, type[NoFolder]]:
    """Imports the run function and the folder of a plan (see `dist_eval.cli.program.Load`)."""
    from dist_eval.planning.runner import plan_run
    from dist_eval.runs.run_folder import NoFolder

    return plan_run, NoFolder


if __name__ == "__main__":
    program.main(PLAN, load)
