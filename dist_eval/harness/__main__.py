"""`torchrun --nproc_per_node=N -m dist_eval.harness`: tasks of the lm-evaluation-harness on a swarm."""

from __future__ import annotations

from functools import partial

from dist_eval.cli import program
from dist_eval.options.harness import HARNESS, HarnessConfig


def load(config: HarnessConfig) -> program.Loaded:
    """Imports the run function, and the class of the run's folder."""
    from dist_eval.evaluation.job import run
    from dist_eval.harness.runner import HarnessTasks
    from dist_eval.runs.evaluation_folder import EvaluationFolder

    return partial(run, HarnessTasks), EvaluationFolder


if __name__ == "__main__":
    program.main(HARNESS, load)
