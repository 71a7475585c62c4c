"""Run by torchrun: every rank exchanges what it has and writes what it then knows to FOLDER/rank-N.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dist_eval.distributed import collectives
from dist_eval.distributed.collectives import (
    all_gather,
    gather_predictions,
    least_over_ranks,
    process_group,
    require_agreement,
    sum_over_ranks,
)
from dist_eval.distributed.rank_store import Board, Launch
from dist_eval.errors import ExactnessError, RunError
from dist_eval.metrics.computing import Totals
from dist_eval.metrics.predictions import Predictions

CLASSES, PATIENCE = 3, 400.0


def share(launch: Launch) -> Predictions:
    """Rank r has r examples, so rank 0 has none; positions are dealt from the end."""
    index = np.arange(launch.rank) + sum(range(launch.rank))
    generator = np.random.default_rng(launch.rank)
    logits = generator.normal(size=(launch.rank, CLASSES))
    return Predictions.from_logits(index[::-1], index % CLASSES, logits)


def everything(world_size: int) -> Predictions:
    """What all ranks have together."""
    shares = [share(Launch(rank=rank, world_size=world_size)) for rank in range(world_size)]
    return Predictions.concatenate(shares).in_dataset_order()


@contextmanager
def counting_rounds() -> Iterator[list[object]]:
    """Notes what goes through all_gather."""
    rounds: list[object] = []
    before = collectives.all_gather
    collectives.all_gather = lambda value: rounds.append(value) or before(value)
    try:
        yield rounds
    finally:
        collectives.all_gather = before


def columns_of(predictions: Predictions) -> dict[str, list]:
    return {name: column.tolist() for name, column in vars(predictions).items()}


def main() -> None:
    folder, launch = Path(sys.argv[1]), Launch.from_environment()
    board = Board(launch)
    if launch.is_leader:
        board.publish("word", "shared before any process group")
    known = {"word": board.wait_for("word", PATIENCE), "word_again": board.wait_for("word", PATIENCE)}
    board.meet("here", PATIENCE)
    try:
        board.wait_for("nobody-writes-this", 1.0)
    except RunError as error:
        known["missing"] = str(error)
    local = share(launch)
    with process_group(launch, board, PATIENCE):
        totals = sum_over_ranks(Totals.of(local))
        gathered = gather_predictions(local)
        collectives._BYTES_IN_A_ROUND = collectives._BYTES_OF_A_RANK = 1  # one row of each rank at a time
        gathered_in_rounds = gather_predictions(local)
        with counting_rounds() as rounds:
            whole = everything(launch.world_size)
            gathered_at_home = gather_predictions(whole if launch.is_leader else whole.rows(0, 0))
        known["rounds_at_home"] = len(rounds)
        known["least"] = least_over_ranks(np.array([5 + launch.rank, 5 - launch.rank], dtype=np.int32)).tolist()
        known["ranks"] = all_gather(launch.rank)
        require_agreement({"plan": "same"})
        try:
            require_agreement({"plan": "same", "weights": "odd" if launch.rank == launch.world_size - 1 else "even"})
        except ExactnessError as error:
            known["disagreement"] = str(error)
    known |= {
        "samples": totals.samples,
        "dtypes": [str(totals.counts.dtype), str(totals.confusion.dtype), str(totals.loss.dtype)],
        "confusion": totals.confusion.tolist(),
        "loss": float(totals.loss[0]),
        "gathered": columns_of(gathered),
        "gathered_in_rounds": columns_of(gathered_in_rounds),
        "gathered_at_home": columns_of(gathered_at_home),
        "expected": columns_of(everything(launch.world_size)),
        "same_confusion": Totals.of(gathered).confusion.tolist(),
        "same_loss": float(gathered.loss.sum()),
    }
    with process_group(launch, board, PATIENCE):
        known["claimed"] = board.claim_failure({"message": f"rank {launch.rank} failed"})
        all_gather("everybody has claimed")
        try:
            board.wait_for("nobody-writes-this", PATIENCE)
        except RunError as error:
            known["gave_up"] = str(error)
        known["reason"] = (board.failure() or {})["message"]
    (folder / f"rank-{launch.rank}.json").write_text(json.dumps(known))


if __name__ == "__main__":
    main()
