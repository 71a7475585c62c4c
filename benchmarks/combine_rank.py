"""The program of each rank of `benchmarks.combine`: generates its share of predictions and gathers all of them.

    torchrun --nproc_per_node=4 -m benchmarks.combine_rank FOLDER EXAMPLES WAY...
    python -m benchmarks.combine_rank --forked 64 FOLDER EXAMPLES WAY...

The second form forks the ranks of torchrun's agent from one process that has imported everything: they share
what would be 300 MB for each of them, so that 64 fit into the memory of a small machine.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.ranks import Meter
from dist_eval.distributed.collectives import all_gather, gather_columns, process_group, sum_arrays
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions, prove_coverage
from dist_eval.metrics.totals import Totals, require_same_totals
from dist_eval.process.lifetime import die_with_parent
from dist_eval.runs.saved_samples import write_predictions

LABELS = ("negative", "positive")
_TIMEOUT = 600.0
_STRIDE = 2_654_435_761
"""A prime by which positions are multiplied for a pseudo-random order, as after sorting by length."""

_C_LIBRARY = ctypes.CDLL(None)


def share_of(rank: int, world_size: int, examples: int) -> Predictions:
    """Generates this rank's predictions; all ranks together have each of the positions 0..examples-1 once."""
    index = np.arange(rank, examples, world_size, dtype=np.int64) * _STRIDE % examples
    generator = np.random.default_rng(rank)
    logits = generator.normal(size=(len(index), len(LABELS))).astype(np.float32)
    label = (logits[:, 1] - logits[:, 0] + generator.normal(size=len(index)) > 0).astype(np.int64)
    return Predictions.from_logits(index, label, logits)


def with_dist_eval(local: Predictions, examples: int, meter: Meter, folder: Path) -> None:
    """The evaluator's implementation, from a rank's predictions to the file."""
    everything = _measured(meter, "gather", lambda: Predictions(**gather_columns(local.columns, order_by="index")))
    totals = _measured(meter, "reduce", lambda: Totals(**sum_arrays(vars(Totals.of(local)))))
    if not dist.get_rank():
        with meter.phase("proof"):
            prove_coverage(everything.index, examples)
            require_same_totals(totals, Totals.of(everything))
        with meter.phase("metrics"):
            compute_metrics(everything, LABELS)
        with meter.phase("parquet"):
            write_predictions(folder / "predictions.parquet", everything)


def with_dictionaries(local: Predictions, examples: int, meter: Meter, folder: Path) -> None:
    """Common in scripts: a list with a dictionary for each prediction, through all_gather_object."""
    columns = (local.index.tolist(), local.label.tolist(), local.logits.tolist(), local.loss.tolist())
    records = [
        {"index": index, "label": label, "logits": logits, "loss": loss}
        for index, label, logits, loss in zip(*columns, strict=True)
    ]

    def gather() -> Predictions | None:
        gathered = [record for part in all_gather(records) for record in part]
        if dist.get_rank():
            return None
        gathered.sort(key=lambda record: record["index"])
        return Predictions(
            np.asarray([record["index"] for record in gathered], dtype=np.int64),
            np.asarray([record["label"] for record in gathered], dtype=np.int64),
            np.asarray([record["logits"] for record in gathered], dtype=np.float32),
            np.asarray([record["loss"] for record in gathered], dtype=np.float64),
        )

    _require_all(_measured(meter, "gather", gather), examples)


def with_tensors(local: Predictions, examples: int, meter: Meter, folder: Path) -> None:
    """Common in trainers: tensors, padded to the length of the longest rank's, through all_gather."""
    tensors = [torch.from_numpy(column) for column in vars(local).values()]

    def gather() -> Predictions | None:
        counts = torch.tensor([len(local)])
        everyones = [torch.empty_like(counts) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, counts)
        longest = max(map(int, everyones))
        columns = []
        for tensor in tensors:
            padded = torch.zeros((longest, *tensor.shape[1:]), dtype=tensor.dtype)
            padded[: len(tensor)] = tensor
            parts = [torch.empty_like(padded) for _ in everyones]
            dist.all_gather(parts, padded)
            columns.append(torch.cat([part[:n] for part, n in zip(parts, everyones, strict=True)]).numpy())
        return None if dist.get_rank() else Predictions(*(column[np.argsort(columns[0])] for column in columns))

    _require_all(_measured(meter, "gather", gather), examples)


WAYS: dict[str, Callable[[Predictions, int, Meter, Path], None]] = {
    "dist_eval": with_dist_eval,
    "dictionaries": with_dictionaries,
    "tensors": with_tensors,
}


def _measured(meter: Meter, name: str, exchange: Callable[[], Any]) -> Any:
    """Measures an exchange that all ranks start at the same time."""
    all_gather("ready")
    with meter.phase(name):
        return exchange()


def _require_all(predictions: Predictions | None, examples: int) -> None:
    if predictions is not None:
        prove_coverage(predictions.index, examples)


def work(options: argparse.Namespace) -> None:
    """Runs each implementation, in ascending order of memory, and writes this rank's measurements."""
    die_with_parent()
    torch.set_num_threads(1)
    topology = Topology.from_environment()
    if topology.is_leader:  # before measuring: the cost of imports does not depend on the implementation
        from pyarrow import parquet  # noqa: F401
        from sklearn import metrics  # noqa: F401
    local = share_of(topology.rank, topology.world_size, options.examples)
    with process_group(topology, RankStore(topology), _TIMEOUT):
        for way in options.ways:
            meter, folder = Meter(), options.folder / way
            WAYS[way](local, options.examples, meter, folder)
            meter.write(folder, topology.rank)
            # returns freed memory to the system, so that the growth of the next one is visible
            gc.collect()
            _C_LIBRARY.malloc_trim(0)


def main() -> None:
    """Runs one rank, or with `--forked` all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.combine_rank")
    parser.add_argument("--forked", type=int, metavar="RANKS")
    parser.add_argument("folder", type=Path)
    parser.add_argument("examples", type=int)
    parser.add_argument("ways", nargs="+", choices=list(WAYS))
    options = parser.parse_args()
    if options.forked is None:
        work(options)
        return
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    die_with_parent()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=options.forked,
        start_method="fork",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="combine",
        max_restarts=0,
    )
    elastic_launch(config, work)(options)


if __name__ == "__main__":
    main()
