"""`torchrun --nproc_per_node=N -m dist_eval.tuning`: the command line of prompt tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_eval.cli import program
from dist_eval.tuning.config import COMMAND, TuningConfig

if TYPE_CHECKING:
    from dist_eval.runs.run_folder import RunFolder


def load(config: TuningConfig) -> tuple[program.RunFunction, type[RunFolder]]:
    """Imports the run function of a tuning, and the class of its folder."""
    from dist_eval.tuning.folder import TuningFolder
    from dist_eval.tuning.tuner import tune

    return tune, TuningFolder


if __name__ == "__main__":
    program.main(COMMAND, load)
