"""Run by torchrun: evaluates the first n digits of the embedded example on a running swarm, for several n.

    world_size_worker.py FOLDER PEER N...

Rank 0 writes predictions and metrics of each n to FOLDER/N.parquet and FOLDER/N.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from dist_eval import demo
from dist_eval.chatter import silence_libraries
from dist_eval.checkpoint import TunedCheckpoint
from dist_eval.collectives import Board, Launch, process_group
from dist_eval.data import tokenize_dataset
from dist_eval.evaluator import predict_and_combine
from dist_eval.lifetime import workspace
from dist_eval.metrics import Totals, compute_metrics, require_same_totals
from dist_eval.model import load_on_swarm
from dist_eval.plan import plan_batches
from dist_eval.predictions import prove_coverage
from dist_eval.progress import Progress
from dist_eval.report import write_predictions
from dist_eval.swarm.bridge import import_petals

TOKEN_BUDGET = 300  # a few examples in a batch, so that 97 make many batches


def main() -> None:
    silence_libraries()
    folder, peer, sizes = Path(sys.argv[1]), sys.argv[2], [int(n) for n in sys.argv[3:]]
    launch = Launch.from_environment()
    board = Board(launch)
    np.random.seed(launch.rank)
    with workspace() as own:
        import_petals(sockets=own)
        from transformers import AutoTokenizer

        from dist_eval.swarm.client import join_swarm
        from dist_eval.swarm.coverage import wait_until_covered

        dht = join_swarm([peer], 60.0)
        wait_until_covered(dht, "base", 4, 60.0)
        tuned = TunedCheckpoint.load(demo.CHECKPOINT)
        classifier = load_on_swarm(
            str(demo.BASE_MODEL), tuned, dht, dht_prefix="base", request_timeout=30.0, max_retries=3
        )
        lines = demo.TEST_DATA.read_text().splitlines()
        with process_group(launch, board, 120.0):
            for n in sizes:
                part = own / str(n)
                part.mkdir()
                (part / "data.csv").write_text("\n".join(lines[: n + 1]) + "\n")
                data = tokenize_dataset(
                    str(part / "data.csv"),
                    part,
                    tokenizer=AutoTokenizer.from_pretrained(demo.CHECKPOINT),
                    text_columns=["text"],
                    label_column="label",
                    label_names=tuned.label_names,
                    max_length=200,
                )
                plan = plan_batches(data.lengths, token_budget=TOKEN_BUDGET, prefix=tuned.pre_seq_len)
                progress = Progress(launch, Board(launch, str(n)), n)
                with progress.shown():
                    combined = predict_and_combine(classifier, data, plan, launch, progress, in_flight=3, patience=60.0)
                coverage = prove_coverage(combined.predictions.index, n)
                require_same_totals(combined.totals, Totals.of(combined.predictions))
                if launch.is_leader:
                    write_predictions(folder / f"{n}.parquet", combined.predictions)
                    metrics = compute_metrics(combined.predictions, tuned.label_names)
                    facts = {
                        "metrics": metrics.values,
                        "confusion": metrics.confusion.tolist(),
                        "seen": coverage.seen,
                        "samples_of_ranks": [work["samples"] for work in combined.ranks],
                        "batches": len(plan),
                    }
                    (folder / f"{n}.json").write_text(json.dumps(facts))
        classifier.close()


if __name__ == "__main__":
    main()
