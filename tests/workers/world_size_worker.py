"""Run by torchrun: evaluates the first n digits of the embedded example, for several n: the most on a running swarm.

    world_size_worker.py FOLDER PEERS N...

Each n is a whole run of the evaluator; its results are in FOLDER/N.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dist_eval import demo
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.evaluation.classification import Classification
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.job import run
from dist_eval.options.config import EvaluationConfig
from dist_eval.process.lifetime import workspace
from dist_eval.process.logging_setup import silence_libraries
from dist_eval.runs.evaluation_folder import EvaluationFolder

TOKEN_BUDGET = 300  # a few examples in a batch, so that 97 make many batches


def main() -> None:
    silence_libraries()
    folder, peers, sizes = Path(sys.argv[1]), sys.argv[2].split(","), [int(n) for n in sys.argv[3:]]
    topology = Topology.from_environment()
    lines = demo.TEST_DATA.read_text().splitlines()
    for n in sizes:
        data = folder / f"first-{n}.csv"
        rank_store = RankStore(topology, str(n))
        if topology.is_leader:
            data.write_text("\n".join(lines[: n + 1]) + "\n")
            rank_store.publish("written", "")
        rank_store.wait_for("written", 400.0)
        config = EvaluationConfig(
            model=str(demo.BASE_MODEL),
            checkpoint=str(demo.CHECKPOINT),
            dataset=str(data),
            initial_peers=peers if n == max(sizes) else [],
            backend="petals" if n == max(sizes) else "local",
            token_budget=TOKEN_BUDGET,
            output=str(folder / str(n)),
            report="none",
        )
        with workspace() as scratch_dir:
            run(
                Classification,
                RunContext(
                    config, topology, rank_store, scratch_dir, EvaluationFolder(config.output_folder, config.recorded())
                ),
            )


if __name__ == "__main__":
    main()
