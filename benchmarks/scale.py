"""`python -m benchmarks.scale`: seconds and memory of a run's steps, from ten thousand rows to a million.

It runs the evaluator on two ranks under torchrun, from a CSV file to the report, on one host and without a swarm. Only
the forward passes are stubs, because a million of them would measure the swarm rather than the evaluator.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import harness, ranks, text
from benchmarks.harness import Comparison
from benchmarks.models import TINY, Model, make_model
from benchmarks.program import BenchmarkError, run_program
from benchmarks.ranks import MEBIBYTE, Rank
from benchmarks.text import Corpus

QUESTION = "How long do the steps of a run take without its forwards, by the number of rows?"
MEMORY_QUESTION = "How much memory is resident at most in a rank, by the number of rows?"
RANKS = 2
ROWS, QUICK_ROWS = (10_000, 100_000, 1_000_000), (500, 5_000)
_LEADER, _OTHER = "dist_eval: rank 0", "dist_eval: rank 1"
_TRAINED_ON = 10_000
_STEPS = (
    "tokenizing",
    "planning",
    "sharding",
    "forwards",
    "journal",
    "reading back",
    "gather",
    "reduce",
    "proof",
    "metrics",
    "intervals",
    "parquet",
)
_FLAT, _BYTES_PER_ROW = 1.1, 100.0


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all sizes.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    sizes = QUICK_ROWS if options.quick else ROWS
    seconds = harness.Report("scale", QUESTION, unit="s", options=options, more_is_better=False)
    memory = harness.Report("scale-memory", MEMORY_QUESTION, unit="MiB", options=options, more_is_better=False)
    corpus = text.load_corpus(max(sizes), options.data)
    model = make_model(scratch_dir, TINY, corpus.sentences[:_TRAINED_ON])
    for rows in sizes:
        group = f"{rows:,} rows"
        some = Corpus(corpus.sentences[:rows], corpus.labels[:rows], corpus.source)
        dataset = some.write_csv(scratch_dir / "rows.csv")
        for _ in range(1 if options.quick else options.rounds):
            measured = run_once(model, dataset, rows, scratch_dir)
            for step in _STEPS:
                seconds.add(group, step, max(rank.phases[step].seconds for rank in measured if step in rank.phases))
            for name, rank in zip((_LEADER, _OTHER), measured, strict=True):
                peaks = {step: phase.peak / MEBIBYTE for step, phase in rank.phases.items()}
                memory.add(group, name, rank.peak / MEBIBYTE, peaks)
    compare(memory, min(sizes), max(sizes))
    seconds.note(corpus.source)
    seconds.note(
        "A step's seconds are the slowest rank's. The forwards are stubs: their seconds are those of "
        "reading and padding, and of the journal, which also stands by itself. tokenizing is done by one rank of the "
        "host; proof, metrics (which at any size imports scikit-learn), intervals and parquet by rank 0."
    )
    memory.note(
        "All libraries count, and what is mapped from files. Rank 0 tokenizes, keeps what it gathers and computes the "
        "metrics. The JSON file has the most in each step."
    )
    seconds.finish()
    memory.finish()


def run_once(model: Model, dataset: Path, rows: int, scratch_dir: Path) -> list[Rank]:
    """Evaluates a dataset on all ranks, once.

    Raises:
        BenchmarkError: the run failed, or not all rows were counted.
    """
    output = scratch_dir / "output"
    arguments = ["-m", "benchmarks.scale_rank", scratch_dir, "--model", model.base, "--checkpoint", model.tuned]
    arguments += ["--dataset", dataset, "--text-column", "sentence", "--backend", "local"]
    arguments += ["--output", output, "--overwrite"]
    ranks.run([*ranks.torchrun(RANKS), *map(str, arguments)], scratch_dir)
    coverage = json.loads((output / "results.json").read_text(encoding="utf-8"))["coverage"]
    if coverage["seen"] != rows:
        raise BenchmarkError(f"{coverage['seen']} of {rows} rows were counted.")
    return ranks.read_ranks(scratch_dir, RANKS)


def compare(memory: harness.Report, fewest: int, most: int) -> None:
    """Compares the memory for the most rows with that for the fewest."""
    small, large = f"{fewest:,} rows", f"{most:,} rows"
    memory.compare(f"{_OTHER}, {large} / {small}", (large, _OTHER), (small, _OTHER), bar=_FLAT, at_most=True)
    memory.compare(f"{_LEADER}, {large} / {small}", (large, _LEADER), (small, _LEADER))
    pairs = zip(memory.series[large, _LEADER].values, memory.series[small, _LEADER].values, strict=True)
    per_row = sorted((much - little) * MEBIBYTE / (most - fewest) for much, little in pairs)
    memory.comparisons.append(
        Comparison(
            f"{_LEADER}, bytes for each further row",
            per_row[len(per_row) // 2],
            per_row[0],
            per_row[-1],
            bar=_BYTES_PER_ROW,
            at_most=True,
        )
    )


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("scale", QUESTION, rounds=3)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder with SST-2 (see benchmarks.throughput)")
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
