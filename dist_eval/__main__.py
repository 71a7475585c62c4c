"""`torchrun --nproc_per_node=N -m dist_eval`: the command line of an evaluation."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dist_eval.cli import program
from dist_eval.distributed.stop import Stop
from dist_eval.options.config import EVALUATION, EvaluationConfig


def run(config: EvaluationConfig, scratch_dir: Path, stop: Stop | None = None) -> int:
    """Runs one rank of an evaluation (see `dist_eval.cli.program.run`)."""
    return program.run(config, scratch_dir, stop, _load)


def _load(config: EvaluationConfig) -> program.Loaded:
    from dist_eval.evaluation import job
    from dist_eval.evaluation.kinds import kind_of
    from dist_eval.runs.evaluation_folder import EvaluationFolder

    return partial(job.run, kind_of(config)), EvaluationFolder


if __name__ == "__main__":
    program.main(EVALUATION, _load)
