"""Run by torchrun: every rank exchanges what it has and writes what it then knows to FOLDER/rank-N.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.distributed import collectives
from dist_eval.distributed.collectives import (
    all_gather,
    all_reduce_min,
    broadcast,
    gather_columns,
    process_group,
    require_agreement,
    sum_arrays,
)
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.errors import ExactnessError, RunError
from dist_eval.metrics.confusion import confusion_of
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.totals import Totals

CLASSES, PATIENCE = 3, 400.0


def share(topology: Topology) -> Predictions:
    """Rank r has r examples, so rank 0 has none; positions are dealt from the end."""
    index = np.arange(topology.rank) + sum(range(topology.rank))
    generator = np.random.default_rng(topology.rank)
    logits = generator.normal(size=(topology.rank, CLASSES))
    return Predictions.from_logits(index[::-1], index % CLASSES, logits)


def everything(world_size: int) -> Predictions:
    """What all ranks have together."""
    shares = [share(Topology(rank=rank, world_size=world_size)) for rank in range(world_size)]
    unordered = Predictions.concatenate(shares)
    return unordered.at(np.argsort(unordered.index))


def gather_predictions(local: Predictions) -> Predictions:
    return Predictions(**gather_columns(local.columns))


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
    return {name: column.tolist() for name, column in predictions.columns.items()}


def counts_of_many_classes(topology: Topology) -> Any:
    """Counts of 2,000 classes: of each rank but the last, which has none, a cell that all have and one of its own."""
    rows = np.array([0, 1 + topology.rank] if topology.rank < topology.world_size - 1 else [], dtype=np.int64)
    return confusion_of(rows, np.full(len(rows), 1999), 2000, np.full(len(rows), 2**60 + 1))


def main() -> None:
    folder, topology = Path(sys.argv[1]), Topology.from_environment()
    rank_store = RankStore(topology)
    if topology.is_leader:
        rank_store.publish("word", "shared before any process group")
    known = {"word": rank_store.wait_for("word", PATIENCE), "word_again": rank_store.wait_for("word", PATIENCE)}
    rank_store.barrier("here", PATIENCE)
    try:
        rank_store.wait_for("nobody-writes-this", 1.0)
    except RunError as error:
        known["missing"] = str(error)
    local = share(topology)
    with process_group(topology, rank_store, PATIENCE):
        totals = Totals(**sum_arrays(vars(Totals.of(local))))
        many_classes = sum_arrays({"confusion": counts_of_many_classes(topology)})["confusion"]
        gathered = gather_predictions(local)
        collectives._BYTES_IN_A_ROUND = collectives._BYTES_OF_A_RANK = 1  # one row of each rank at a time
        gathered_in_rounds = gather_predictions(local)
        with counting_rounds() as rounds:
            whole = everything(topology.world_size)
            gathered_at_home = gather_predictions(whole if topology.is_leader else whole.at(slice(0)))
        known["rounds_at_home"] = len(rounds)
        known["least"] = all_reduce_min(np.array([5 + topology.rank, 5 - topology.rank], dtype=np.int32)).tolist()
        known["ranks"] = all_gather(topology.rank)
        own = [bytes([topology.rank + 65, number + 97]) for number in range(3 - topology.rank)]
        known["broadcast"] = b"".join(broadcast(own)).decode()
        require_agreement({"plan": "same"})
        try:
            require_agreement(
                {"plan": "same", "weights": "odd" if topology.rank == topology.world_size - 1 else "even"}
            )
        except ExactnessError as error:
            known["disagreement"] = str(error)
    known |= {
        "samples": totals.samples,
        "dtypes": [str(totals.counts.dtype), str(totals.confusion.dtype), str(totals.loss.dtype)],
        "confusion": totals.confusion.toarray().tolist(),
        "many_classes": {f"{row}, {column}": int(n) for (row, column), n in many_classes.todok().items()},
        "loss": float(totals.loss[0]),
        "gathered": columns_of(gathered),
        "gathered_in_rounds": columns_of(gathered_in_rounds),
        "gathered_at_home": columns_of(gathered_at_home),
        "expected": columns_of(everything(topology.world_size)),
        "same_confusion": Totals.of(gathered).confusion.toarray().tolist(),
        "same_loss": float(gathered.loss.sum()),
    }
    with process_group(topology, rank_store, PATIENCE):
        known["claimed"] = rank_store.claim_failure({"message": f"rank {topology.rank} failed"})
        all_gather("everybody has claimed")
        try:
            rank_store.wait_for("nobody-writes-this", PATIENCE)
        except RunError as error:
            known["gave_up"] = str(error)
        known["reason"] = (rank_store.failure() or {})["message"]
    (folder / f"rank-{topology.rank}.json").write_text(json.dumps(known))


if __name__ == "__main__":
    main()
