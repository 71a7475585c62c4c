"""`python -m benchmarks.scaling`: scaling with the number of ranks on a swarm with high latency.

The base model is small on purpose: servers and ranks share the cores of this host, and whether ranks wait for each
other is visible only while network latency exceeds computing time. With one request in flight per rank, N ranks should
have N times the throughput; with an adaptive window, a single rank should keep the servers busy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import harness, text
from benchmarks.contenders import Contender, Stage, describe_plan, note_agreement, run_round
from benchmarks.hosting import distant_swarm_of
from benchmarks.models import TINY, make_model
from benchmarks.program import run_program

QUESTION = "How much faster do further ranks make an evaluation on a swarm that is far away?"
RANKS, ROUND_TRIP = (1, 2, 4, 8), 100
_QUICK_ROWS = 160
WINDOWS = {"1 request in flight for each rank": ("--in-flight", "1"), "window sizes itself": ()}


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Runs dist_eval on 1, 2, 4 and 8 ranks.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    report = harness.Report("scaling", QUESTION, unit="examples/s", options=options)
    all_ranks, rows, rounds, windows = list(RANKS), options.rows, options.rounds, list(WINDOWS.items())
    if options.quick:
        all_ranks, rows, rounds, windows = all_ranks[:2], _QUICK_ROWS, 1, windows[:1]
    corpus = text.load_corpus(rows, options.data)
    report.note(corpus.source)
    model = make_model(scratch_dir, TINY, corpus.sentences)
    names = {ranks: f"dist_eval, {ranks} rank{'s' if ranks > 1 else ''}" for ranks in all_ranks}
    groups = {f"Llama {TINY}, {ROUND_TRIP} ms round trip, {name}": option for name, option in windows}
    contenders = {
        group: [Contender(name, "dist_eval", ranks=ranks, options=option) for ranks, name in names.items()]
        for group, option in groups.items()
    }
    with distant_swarm_of(model, scratch_dir) as (swarm, proxy):
        proxy.set_round_trip(ROUND_TRIP / 1000)
        stage = Stage(model, corpus, swarm.initial_peers, scratch_dir)
        for _ in range(rounds):
            for group, members in contenders.items():
                outcomes = run_round(report, group, stage, members)
    report.note(describe_plan(outcomes[names[1]]))
    for group, option in groups.items():
        for ranks in all_ranks[1:]:
            bar = 3.6 if ranks == 4 and option else None
            claim = f"{group.rsplit(', ', 1)[1]}: {ranks} ranks / 1 rank"
            report.compare(claim, (group, names[ranks]), (group, names[1]), bar=bar)
    note_agreement(report, next(iter(contenders.values())))
    report.finish()


def main() -> None:
    """Runs the command line."""
    parser = harness.parser("scaling", QUESTION, rounds=3)
    text.add_options(parser, rows=4000)
    options = parser.parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
