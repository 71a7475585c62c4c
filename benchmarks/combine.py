"""`python -m benchmarks.combine`: the cost of gathering all predictions, proving them complete and writing them.

Real ranks exchange synthetic predictions of two classes over gloo. The evaluator's implementation is compared with the
two common ones: a list of dictionaries through all_gather_object, and padded tensors through all_gather.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness import Program, Report
from benchmarks.meter import MEBIBYTE, Meter
from benchmarks.processes import call
from dist_eval.distributed.collectives import all_gather, gather_columns, process_group, sum_arrays
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions, prove_coverage
from dist_eval.metrics.totals import Totals, require_same_totals
from dist_eval.runs.saved_samples import write_samples

QUESTION = "How much time does it take to combine the predictions of all ranks?"
MEMORY_QUESTION = "How much memory does a rank need to combine predictions?"
OURS, TENSORS, DICTIONARIES = "dist_eval", "all_gather of padded tensors", "all_gather_object of dictionaries"
_MOST_DICTIONARIES = 2_000_000  # more would need tens of gigabytes on all ranks together
_LABELS = ("negative", "positive")
_TIMEOUT = 600.0
_STRIDE = 2_654_435_761  # a prime that positions are multiplied by: a pseudo-random order, as after sorting by length


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all numbers of predictions."""
    seconds = Report("combine", QUESTION, unit="s", options=options, more_is_better=False)
    memory = Report("combine-memory", MEMORY_QUESTION, unit="MiB", options=options, more_is_better=False)
    for examples in options.examples:
        group = f"{examples:,} predictions on {options.ranks} ranks"
        ways = [OURS, TENSORS, *([DICTIONARIES] if examples <= _MOST_DICTIONARIES else [])]
        for _ in range(options.rounds):
            for way in ways:
                function = "benchmarks.combine:combine"
                ranks = call(function, scratch_dir, ranks=options.ranks, way=way, examples=examples)
                took = {
                    step: max(found["steps"][step]["seconds"] for found in ranks if step in found["steps"])
                    for step in ranks[0]["steps"]
                }
                for step, value in took.items():
                    seconds.add(group, f"{way}: {step}", value)
                if way == OURS:
                    seconds.add(group, f"{way}: all", sum(took.values()))
                for who, some in (("rank 0", ranks[:1]), ("another rank", ranks[1:])):
                    peak = max(found["steps"]["gather"]["peak"] for found in some)
                    memory.add(group, f"{way}: {who}", peak / MEBIBYTE)
        for way in ways[1:]:
            for report, part in ((seconds, "gather"), (memory, "rank 0"), (memory, "another rank")):
                report.compare(
                    f"{group}: {way} / {OURS}, {part}", (group, f"{way}: {part}"), (group, f"{OURS}: {part}")
                )
        if DICTIONARIES not in ways:
            seconds.note(f"{group}: left out {DICTIONARIES}, which would need tens of gigabytes.")
    seconds.note(
        "A step's seconds are the slowest rank's; proof, metrics and parquet are done by rank 0 alone. In all ways the "
        "gather ends with arrays on rank 0 in the dataset's order."
    )
    memory.note("During the gather, including a rank's own predictions and all libraries.")
    seconds.finish()
    memory.finish()


def combine(scratch_dir: Path, *, way: str, examples: int) -> dict[str, Any]:
    """Combines synthetic predictions on a rank; returns time and memory of the steps."""
    torch.set_num_threads(1)
    topology = Topology.from_environment()
    if topology.is_leader:  # before measuring: the cost of imports does not depend on the implementation
        from pyarrow import parquet  # noqa: F401
        from sklearn import metrics  # noqa: F401
    local, meter = share_of(topology.rank, topology.world_size, examples), Meter()
    with process_group(topology, RankStore(topology), _TIMEOUT):
        gather = WAYS[way](local)
        all_gather("ready")
        with meter.step("gather"):
            everything = gather()
        if way == OURS:
            all_gather("ready")
            with meter.step("reduce"):
                totals = Totals(**sum_arrays(vars(Totals.of(local))))
        if not topology.is_leader:
            return meter.results()
        with meter.step("proof"):
            prove_coverage(everything.index, examples)
            if way == OURS:
                require_same_totals(totals, Totals.of(everything))
        if way == OURS:
            with meter.step("metrics"):
                compute_metrics(everything, _LABELS)
            with meter.step("parquet"):
                write_samples(scratch_dir / "predictions.parquet", everything)
    return meter.results()


def share_of(rank: int, world_size: int, examples: int) -> Predictions:
    """Generates this rank's predictions; over all ranks, each position 0..examples-1 occurs once."""
    index = np.arange(rank, examples, world_size, dtype=np.int64) * _STRIDE % examples
    generator = np.random.default_rng(rank)
    logits = generator.normal(size=(len(index), len(_LABELS))).astype(np.float32)
    label = (logits[:, 1] - logits[:, 0] + generator.normal(size=len(index)) > 0).astype(np.int64)
    return Predictions.from_logits(index, label, logits)


Gather = Callable[[], Predictions]


def with_dist_eval(local: Predictions) -> Gather:
    """The evaluator's way."""
    return lambda: Predictions(**gather_columns(local.columns))


def with_dictionaries(local: Predictions) -> Gather:
    """Common in scripts: a list with a dictionary for each prediction, through all_gather_object."""
    columns = local.columns
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    records = [dict(zip(columns, row, strict=True)) for row in rows]

    def gather() -> Predictions:
        gathered = [record for part in all_gather(records) for record in part]
        if dist.get_rank():
            return local
        gathered.sort(key=lambda record: record["index"])
        return Predictions(
            **{
                name: np.asarray([record[name] for record in gathered], dtype=column.dtype)
                for name, column in columns.items()
            }
        )

    return gather


def with_tensors(local: Predictions) -> Gather:
    """Common in trainers: tensors, padded to the length of the longest rank's, through all_gather."""

    def gather() -> Predictions:
        counts = torch.tensor([len(local)])
        everyones = [torch.empty_like(counts) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, counts)
        longest = max(map(int, everyones))
        columns = {}
        for name, column in local.columns.items():
            tensor = torch.from_numpy(column)
            padded = torch.zeros((longest, *tensor.shape[1:]), dtype=tensor.dtype)
            padded[: len(tensor)] = tensor
            parts = [torch.empty_like(padded) for _ in everyones]
            dist.all_gather(parts, padded)
            columns[name] = torch.cat([part[:n] for part, n in zip(parts, everyones, strict=True)]).numpy()
        if dist.get_rank():
            return local
        order = np.argsort(columns["index"])
        return Predictions(**{name: column[order] for name, column in columns.items()})

    return gather


WAYS: dict[str, Callable[[Predictions], Gather]] = {
    OURS: with_dist_eval,
    TENSORS: with_tensors,
    DICTIONARIES: with_dictionaries,
}

PROGRAM = Program("combine", QUESTION, measure, quick={"examples": [100_000]})
PROGRAM.add("--examples", (1_000_000, 10_000_000), "numbers of predictions")
PROGRAM.add("--ranks", 4, "number of ranks")

if __name__ == "__main__":
    PROGRAM.main()
