"""`torchrun --nproc_per_node=N -m dist_eval.tuning`: the command line of prompt tuning."""

from __future__ import annotations

from dist_eval.cli import program
from dist_eval.options.tuning import COMMAND, TuningConfig


def load(config: TuningConfig) -> program.Loaded:
    """Imports the run function of a tuning, and the class of its folder."""
    from dist_eval.tuning.folder import TuningFolder
    from dist_eval.tuning.tuner import tune

    return tune, TuningFolder


if __name__ == "__main__":
    program.main(COMMAND, load)
