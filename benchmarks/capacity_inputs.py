"""The measurements of `benchmarks.capacity`: the steps of a run at small scale, with the evaluator's own code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ranks
from benchmarks.combine_rank import LABELS, share_of
from benchmarks.ranks import Meter
from dist_eval import demo
from dist_eval.data.answers import BatchOutcome, RouteSegment, logits_columns
from dist_eval.data.plan import plan_batches
from dist_eval.metrics.predictions import prove_coverage
from dist_eval.runs.journal import Journal

_PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
_LENGTHS = (10, 60)


@dataclass(frozen=True)
class Measured:
    """Constants measured on this machine.

    Attributes:
        tokenizing: seconds per token.
        token_bytes: bytes on disk per token, including all columns.
        planning: seconds per example.
        plan_bytes: bytes of memory in each rank per example, without memory-mapped files.
        record_bytes: bytes of a batch in the journal, without its answers.
        reading: seconds to read a batch from the journal at a restart.
        row_bytes: bytes of a prediction of two classes.
        leader_bytes: maximum growth of rank 0's memory per prediction, in bytes, until all is written.
        tail: seconds on rank 0 per prediction, by step.
        intervals: seconds for all intervals of `rows` predictions; above about a million they take longer.
        rows: number of predictions for the measurements of rank 0's steps.
        requests: requests per second that the ranks' store answers.
        group_files: files that a rank opens for each other rank.
        opening: seconds to open the process group, per rank.
        hop: seconds per rank of a collective in which all ranks send.
        world_sizes: numbers of ranks with which the last three were measured.
    """

    tokenizing: float
    token_bytes: float
    planning: float
    plan_bytes: float
    record_bytes: float
    reading: float
    row_bytes: float
    leader_bytes: float
    tail: dict[str, float]
    intervals: float
    rows: int
    requests: float
    group_files: float
    opening: float
    hop: float
    world_sizes: tuple[int, int]


def measure_inputs(scratch_dir: Path, quick: bool) -> Measured:
    """Measures all inputs.

    Args:
        scratch_dir: folder for temporary files.
        quick: use fewer examples and ranks.
    """
    rows, records, world_sizes = (20_000, 300, (2, 4)) if quick else (1_000_000, 5_000, (4, 16))
    tokenizing, token_bytes = _measure_tokenizing(scratch_dir, copies=2 if quick else 100)
    planning, plan_bytes = _measure_plan(rows)
    record_bytes, reading = _measure_journal(scratch_dir, records)
    tail, row_bytes, leader_bytes = _measure_tail(scratch_dir, rows)
    few, many = (_measure_ranks(scratch_dir, n) for n in world_sizes)
    added = world_sizes[1] - world_sizes[0]
    return Measured(
        tokenizing=tokenizing,
        token_bytes=token_bytes,
        planning=planning,
        plan_bytes=plan_bytes,
        record_bytes=record_bytes,
        reading=reading,
        row_bytes=row_bytes,
        leader_bytes=leader_bytes,
        intervals=tail.pop("intervals") * rows,
        tail=tail,
        rows=rows,
        requests=_measure_store(500 if quick else 5_000),
        group_files=(many["files"] - few["files"]) / added,
        opening=many["opening"] / world_sizes[1],
        hop=many["round"] / world_sizes[1],
        world_sizes=world_sizes,
    )


def _seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def _measure_tokenizing(scratch_dir: Path, copies: int) -> tuple[float, float]:
    from transformers import AutoTokenizer

    from dist_eval.data.labelled_rows import LabelledRows
    from dist_eval.data.tokenizing import tokenize_dataset

    tokenizer, folder = AutoTokenizer.from_pretrained(str(demo.BASE_MODEL)), scratch_dir / "tokens"
    folder.mkdir()
    header, _, lines = demo.TEST_DATA.read_text(encoding="utf-8").partition("\n")
    (scratch_dir / "rows.csv").write_text(f"{header}\n{lines * copies}", encoding="utf-8")
    seconds, data = _seconds(
        lambda: tokenize_dataset(
            LabelledRows(str(scratch_dir / "rows.csv"), ["text"], "label", [str(digit) for digit in range(10)]),
            folder,
            tokenizer=tokenizer,
            max_length=496,
        )
    )
    tokens = int(data.lengths.sum())
    return seconds / tokens, sum(path.stat().st_size for path in folder.iterdir()) / tokens


def _measure_plan(examples: int) -> tuple[float, float]:
    lengths = np.random.default_rng(0).integers(*_LENGTHS, examples).astype(np.int32)
    seconds, plan = _seconds(lambda: plan_batches(lengths, token_budget=1024, prefix=16))
    held = (plan.order, plan.starts, plan.tokens, plan.real_tokens)
    return seconds / examples, sum(array.nbytes for array in held) / examples


def _measure_journal(scratch_dir: Path, records: int) -> tuple[float, float]:
    sizes = np.full(records, 20)
    route = [RouteSegment(_PEER, first, first + 10, "float16") for first in range(0, 70, 10)]
    answers = np.zeros(20, dtype=logits_columns(2))
    journal = Journal(scratch_dir, sizes, answers.dtype)
    for number in range(records):
        journal.append(BatchOutcome(batch=number, answers=answers, route=route))
    journal.close()
    size = sum(path.stat().st_size for path in (scratch_dir / "journal").glob("*.batches"))
    seconds, _ = _seconds(Journal(scratch_dir, sizes, answers.dtype, rank=1).read)
    return size / records - answers.nbytes, seconds / records


def _measure_tail(scratch_dir: Path, rows: int) -> tuple[dict[str, float], float, float]:
    """Measures the steps of rank 0 alone: seconds and bytes per prediction."""
    from dist_eval.metrics.computing import compute_metrics
    from dist_eval.metrics.totals import Totals
    from dist_eval.runs.saved_samples import write_predictions
    from dist_eval.statistics import metric_intervals

    few = share_of(0, 1, 100)
    write_predictions(scratch_dir / "few.parquet", few)  # imports what the steps need
    metric_intervals(few, compute_metrics(few, LABELS), confidence=0.95)
    predictions, meter = share_of(0, 1, rows), Meter()
    with meter.phase("sorting"):
        predictions = predictions.at(np.argsort(predictions.index))
    with meter.phase("proof"):
        prove_coverage(predictions.index, rows)
        Totals.of(predictions)
    with meter.phase("metrics"):
        metrics = compute_metrics(predictions, LABELS)
    with meter.phase("intervals"):
        metric_intervals(predictions, metrics, confidence=0.95)
    with meter.phase("parquet"):
        write_predictions(scratch_dir / "predictions.parquet", predictions)
    row_bytes = sum(column.nbytes for column in vars(predictions).values()) / rows
    growth = max(phase.peak for phase in meter.phases.values()) - meter.phases["sorting"].before
    # while being gathered, predictions are in memory twice
    return {name: phase.seconds / rows for name, phase in meter.phases.items()}, row_bytes, growth / rows + row_bytes


def _measure_ranks(scratch_dir: Path, count: int) -> dict[str, float]:
    ranks.run(["-m", "benchmarks.capacity_rank", str(count), str(scratch_dir)], scratch_dir)
    return json.loads((scratch_dir / f"ranks-{count}.json").read_text(encoding="utf-8"))


def _measure_store(requests: int) -> float:
    import torch.distributed as dist

    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=60))
    seconds, _ = _seconds(lambda: [client.add("counter", 1) for _ in range(requests)])
    return requests / seconds
