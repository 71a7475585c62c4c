"""Run by torchrun: evaluates the first n digits of the embedded example on a running swarm, for several n.

    world_size_worker.py FOLDER PEERS N...

Each n is a whole run of the evaluator; its results are in FOLDER/N.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dist_eval import demo
from dist_eval.config import EvaluationConfig
from dist_eval.distributed.rank_store import Board, Launch
from dist_eval.evaluation.evaluator import evaluate_run
from dist_eval.process.lifetime import workspace
from dist_eval.process.logging_setup import silence_libraries

TOKEN_BUDGET = 300  # a few examples in a batch, so that 97 make many batches


def main() -> None:
    silence_libraries()
    folder, peers, sizes = Path(sys.argv[1]), sys.argv[2].split(","), [int(n) for n in sys.argv[3:]]
    launch = Launch.from_environment()
    lines = demo.TEST_DATA.read_text().splitlines()
    for n in sizes:
        data = folder / f"first-{n}.csv"
        board = Board(launch, str(n))
        if launch.is_leader:
            data.write_text("\n".join(lines[: n + 1]) + "\n")
            board.publish("written", "")
        board.wait_for("written", 400.0)
        config = EvaluationConfig(
            model=str(demo.BASE_MODEL),
            checkpoint=str(demo.CHECKPOINT),
            dataset=str(data),
            initial_peers=peers,
            token_budget=TOKEN_BUDGET,
            output=str(folder / str(n)),
        )
        with workspace() as own:
            evaluate_run(config, launch, board, own)


if __name__ == "__main__":
    main()
