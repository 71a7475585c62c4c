"""`python -m benchmarks.wide_area`: examples per second on a swarm with high latency.

A proxy in front of the two servers delays traffic in both directions (see `delay_proxy.py`), without limiting the
bandwidth; traffic passes through it at 0 ms, too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import harness, text
from benchmarks.contenders import Contender, Stage, describe_plan, libraries, note_agreement, run_round
from benchmarks.hosting import distant_swarm_of
from benchmarks.models import SMALL, TINY, make_model
from benchmarks.program import run_program

QUESTION = "How many examples per second does a swarm classify that is far away?"
HEADLINE = 100
"""Round-trip time in milliseconds to which the required bounds apply."""

ROUND_TRIPS = (0, 20, HEADLINE, 200)
LOOP, TWO_RANKS = "loop, padded to 64", "dist_eval, 2 ranks"
LIBRARIES = libraries(every=4)  # with 2560 rows no contender has a small last batch
OURS = (
    Contender(TWO_RANKS, "dist_eval", ranks=2),
    Contender("dist_eval, 1 rank", "dist_eval"),
    Contender("dist_eval, 4 ranks", "dist_eval", ranks=4),
)
THEIRS = (Contender(LOOP, "loop", max_length=64, every=8), *LIBRARIES)
_QUICK_ROWS = 64


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Runs the contenders at each latency, on one swarm.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    report = harness.Report("wide_area", QUESTION, unit="examples/s", options=options)
    size, rows, rounds, round_trips = SMALL, options.rows, options.rounds, list(ROUND_TRIPS)
    ours, theirs = list(OURS), list(THEIRS)
    if options.quick:
        size, rows, rounds, round_trips = TINY, _QUICK_ROWS, 1, [0, HEADLINE]
        ours, theirs = ours[:1], [one for one in LIBRARIES if one.batch_size == 32 and one.ranks == 1]
    corpus = text.load_corpus(rows, options.data)
    report.note(corpus.source)
    model = make_model(scratch_dir, size, corpus.sentences)
    groups = {milliseconds: f"Llama {size}, {milliseconds} ms round trip" for milliseconds in round_trips}
    with distant_swarm_of(model, scratch_dir) as (swarm, proxy):
        stage = Stage(model, corpus, swarm.initial_peers, scratch_dir)
        for _ in range(rounds):
            for milliseconds, group in groups.items():
                proxy.set_round_trip(milliseconds / 1000)
                others = [] if options.quick and milliseconds != HEADLINE else theirs
                outcomes = run_round(report, group, stage, [*ours, *others])
    here, there = groups[0], groups[HEADLINE]
    at = f"{HEADLINE} ms: "
    report.note(describe_plan(outcomes[TWO_RANKS]))
    if not options.quick:
        report.compare(f"{at}{TWO_RANKS} / {LOOP}", (there, TWO_RANKS), (there, LOOP), bar=8)
    rivals = [(there, one.name) for one in LIBRARIES if one in theirs]
    best = f"{at}{TWO_RANKS} / best of gather_for_metrics, Trainer.predict"
    report.compare(best, (there, TWO_RANKS), rivals, bar=4)
    for one in ours:
        bar = 0.85 if one.name == TWO_RANKS else None
        report.compare(f"{at}{one.name} / the same at 0 ms", (there, one.name), (here, one.name), bar=bar)
    note_agreement(report, [*ours, *theirs])
    report.finish()


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("wide_area", QUESTION, rounds=3)
    text.add_options(parser, rows=2560)
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
