"""`python -m benchmarks.throughput`: examples per second on a swarm of this host, for common ways to evaluate.

Two servers with one thread each hold the model, so the servers' computing power is the limit; "local" uses the same
cores without a swarm. All contenders classify the same rows on the same swarm, in rounds.

The overhead of a swarm grows linearly with the width of a model, computing quadratically. So the share of "local" that
a swarm can reach is also measured on a model half as wide as the usual ones with 7 billion parameters.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks import harness, text
from benchmarks.contenders import Contender, Stage, describe_plan, libraries, note_agreement, run_round
from benchmarks.hosting import swarm_of
from benchmarks.models import MEDIUM, SMALL, TINY, WIDE, Size, make_model
from benchmarks.program import run_program

QUESTION = "How many examples per second does a swarm on this host classify?"
LOCAL, LOOP_64, LOOP_64_TWICE, LOOP_128, ONE_RANK, TWO_RANKS = (
    "local, no swarm",
    "loop, padded to 64",
    "loop, padded to 64, 2 ranks",
    "loop, padded to 128",
    "dist_eval, 1 rank",
    "dist_eval, 2 ranks",
)
LIBRARIES = libraries(every=2)  # with 2048 rows no contender has a small last batch
CONTENDERS = (
    Contender(LOCAL, "local", threads=len(os.sched_getaffinity(0))),
    Contender(LOOP_64, "loop", max_length=64, every=2),
    Contender(LOOP_64_TWICE, "loop", ranks=2, max_length=64, every=2),
    Contender(LOOP_128, "loop", max_length=128, every=4),
    *LIBRARIES,
    Contender(ONE_RANK, "dist_eval"),
    Contender(TWO_RANKS, "dist_eval", ranks=2),
    Contender("dist_eval, 4 ranks", "dist_eval", ranks=4),
)
_AT_THE_LIMIT = (LOCAL, ONE_RANK)
_WIDE_ROWS_SHARE = 4
_QUICK_ROWS = 64
_QUICK_LEFT_OUT = (
    "dist_eval, 4 ranks",
    LOOP_64_TWICE,
    LOOP_128,
    *(one.name for one in LIBRARIES if one.batch_size > 32 or one.ranks == 1),
)
"""Contenders that --quick skips, because it or `benchmarks.wide_area` runs them with other settings."""


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Runs all contenders on a swarm for each base model.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    report = harness.Report("throughput", QUESTION, unit="examples/s", options=options)
    sizes: dict[Size, int] = {SMALL: options.rows, MEDIUM: options.rows // 2, WIDE: options.rows // _WIDE_ROWS_SHARE}
    sizes = {size: rows for size, rows in sizes.items() if str(size) in (options.bases or map(str, sizes))}
    if options.quick:
        sizes = {TINY: _QUICK_ROWS}
    everybody = [one for one in CONTENDERS if not (options.quick and one.name in _QUICK_LEFT_OUT)]
    for size, rows in sizes.items():
        contenders = [one for one in everybody if size != WIDE or one.name in _AT_THE_LIMIT]
        corpus, group = text.load_corpus(rows, options.data), f"Llama {size}, {rows} rows"
        report.note(corpus.source)
        model = make_model(scratch_dir, size, corpus.sentences)
        with swarm_of(model, scratch_dir) as swarm:
            stage = Stage(model, corpus, swarm.initial_peers, scratch_dir)
            for _ in range(1 if options.quick else options.rounds):
                outcomes = run_round(report, group, stage, contenders)
        report.note(f"{group}: {describe_plan(outcomes[ONE_RANK])}")
        # compares one process with one, and two with two; the servers leave few cores for more
        alone, two = (group, ONE_RANK), (group, TWO_RANKS)
        report.compare(f"{size}: {ONE_RANK} / {LOCAL}", alone, (group, LOCAL), bar=0.92)
        if size == WIDE:
            continue
        report.compare(f"{size}: {ONE_RANK} / {LOOP_64}", alone, (group, LOOP_64), bar=2.6)
        if not options.quick:
            report.compare(f"{size}: {ONE_RANK} / {LOOP_128}", alone, (group, LOOP_128), bar=4.6)
            report.compare(f"{size}: {TWO_RANKS} / {LOOP_64_TWICE}", two, (group, LOOP_64_TWICE))
        rivals = [(group, one.name) for one in LIBRARIES if one in contenders]
        report.compare(f"{size}: {TWO_RANKS} / best of gather_for_metrics, Trainer.predict", two, rivals, bar=1.5)
    note_agreement(report, everybody)
    report.finish()


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("throughput", QUESTION, rounds=3)
    text.add_options(parser, rows=2048)
    bases = [str(size) for size in (SMALL, MEDIUM, WIDE)]
    parser.add_argument("--bases", nargs="+", choices=bases, help=f"base models (default: {', '.join(bases)})")
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
