"""`python -m benchmarks.throughput`: examples per second on a swarm, near or far away, for common ways to evaluate.

Two servers with one thread each hold the model, so the servers' computing power is the limit; "local" uses the same
cores without a swarm. All contenders classify the same rows on the same swarm, in rounds. With `--round-trips` a proxy
in front of the servers delays traffic in both directions (see `delay_proxy.py`), which also passes it at 0 ms.

The overhead of a swarm grows linearly with the width of a model, computing quadratically. So the share of "local" that
a swarm can reach is also measured on a model half as wide as the usual ones with 7 billion parameters.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contenders import Classification, Contender, Outcome, note_agreement, run_round, with_ranks
from benchmarks.delay_proxy import DelayProxy
from benchmarks.harness import Program, Report
from benchmarks.models import MEDIUM, SIZES, SMALL, WIDE, Model, make_model
from benchmarks.swarms import distant_swarm_of, swarm_of
from benchmarks.text import load_corpus

QUESTION = "How many examples per second does a swarm classify, on this host and far away?"
HEADLINE = 100
"""Round trip in milliseconds to which the required bounds of a distant swarm apply."""

LOCAL, LOOP_64, LOOP_64_TWICE, LOOP_128 = (
    "local, no swarm",
    "loop, padded to 64",
    "loop, padded to 64, 2 ranks",
    "loop, padded to 128",
)
LIBRARIES = (("gather_for_metrics, 2 ranks", "gather_for_metrics", 2), ("Trainer.predict", "trainer_predict", None))
LIBRARY_NAMES = tuple(name for name, _, _ in LIBRARIES)
BATCH_SIZES = (32, 64)  # of the libraries; with 2048 rows no contender has a small last batch
EVALUATE = "evaluate(model, loader)"
KINDS = ("local", "loop", "libraries", "evaluate", "dist_eval")
_SHARE_OF_ROWS = {str(SMALL): 1, str(MEDIUM): 2, str(WIDE): 4}


def in_flight(batches: int) -> str:
    """Returns what the name of a contender says of `--in-flight`."""
    return f", {batches} in flight" if batches else ""


def contenders(work: Classification, options: argparse.Namespace) -> list[Contender]:
    """Returns those who compete, the one with all rows first."""
    slow = 2 if any(options.round_trips) else 1
    found = []
    if "local" in options.contenders:
        found.append(work.alternative(LOCAL, "local", threads=len(os.sched_getaffinity(0))))
    found += [
        work.dist_eval(
            with_ranks(ranks) + in_flight(batches), ranks, *(["--in-flight", str(batches)] if batches else [])
        )
        for batches in options.in_flight
        for ranks in options.ranks
    ]
    if str(work.model.size) == str(WIDE):
        return found[:2]
    if "evaluate" in options.contenders:
        found.append(work.alternative(EVALUATE, "evaluate"))
    if "loop" in options.contenders:
        found.append(work.alternative(LOOP_64, "loop", max_length=64, every=2 * slow))
        if not options.quick:
            found.append(work.alternative(LOOP_64_TWICE, "loop", ranks=2, max_length=64, every=2 * slow))
            found.append(work.alternative(LOOP_128, "loop", max_length=128, every=4 * slow))
    if "libraries" in options.contenders:
        found += [
            work.alternative(f"{name}, batch {size}", module, ranks=ranks, batch_size=size, every=2 * slow)
            for name, module, ranks in LIBRARIES
            for size in (BATCH_SIZES[:1] if options.quick else BATCH_SIZES)
        ]
    return found


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Runs all contenders on a swarm for each base model."""
    report = Report("throughput", QUESTION, unit="examples/s", options=options)
    for base in options.bases:
        rows = options.rows // _SHARE_OF_ROWS.get(base, 1)
        corpus = load_corpus(rows, options.data)
        report.note(corpus.source)
        model = make_model(scratch_dir, SIZES[base], corpus.sentences)
        groups = {far: f"Llama {base}, {rows} rows, {far} ms" for far in options.round_trips}
        with _swarm(model, scratch_dir, far=any(options.round_trips)) as (peers, proxy):
            competing = contenders(Classification(model, corpus, peers, scratch_dir), options)
            for _ in range(options.rounds):
                for far, group in groups.items():
                    if proxy is not None:
                        proxy.set_round_trip(far / 1000)
                    outcomes = run_round(report, group, competing)
        report.note(f"{groups[options.round_trips[0]]}: {describe_plan(outcomes)} {describe_traffic(outcomes)}")
        for far, group in groups.items():
            compare(report, group, far, options)
            if far:
                _compare_with_near(report, groups, far, options)
        note_agreement(report, competing)
    report.finish()


@contextmanager
def _swarm(model: Model, scratch_dir: Path, *, far: bool) -> Iterator[tuple[list[str], DelayProxy | None]]:
    if far:
        with distant_swarm_of(model, scratch_dir) as (swarm, proxy):
            yield swarm.initial_peers, proxy
    else:
        with swarm_of(model, scratch_dir) as swarm:
            yield swarm.initial_peers, None


def describe_plan(outcomes: dict[str, Outcome]) -> str:
    """Returns a sentence on the number of batches that dist_eval sent, and on the share of padding."""
    plan = next(outcome.facts["plan"] for outcome in outcomes.values() if "plan" in outcome.facts)
    return (
        f"dist_eval sent {plan['batches']} batches of together {plan['padded_tokens']} tokens, "
        f"{plan['real_tokens']} of them real (prompts included)."
    )


def describe_traffic(outcomes: dict[str, Outcome]) -> str:
    """Returns a sentence on what dist_eval exchanged with servers, by the way it is used."""
    totals = {
        name: [rank["traffic"] for rank in outcome.facts["ranks"]]
        for name, outcome in outcomes.items()
        if outcome.facts
    }
    parts = [
        f"{name}: {sum(rank['round_trips'] for rank in ranks)} requests, "
        f"{sum(rank['bytes_sent'] for rank in ranks) / 1e6:.1f} MB sent, "
        f"{sum(rank['bytes_received'] for rank in ranks) / 1e6:.1f} MB received"
        for name, ranks in totals.items()
    ]
    return f"Traffic of the last round: {'; '.join(parts)}."


def compare(report: Report, group: str, far: int, options: argparse.Namespace) -> None:
    """Compares one process with one, and two with two: the servers leave few cores for more."""
    near = not far
    at_headline = far == HEADLINE
    one, two = with_ranks(1), with_ranks(2)
    libraries = [name for member, name in report.series if member == group and name.startswith(LIBRARY_NAMES)]
    for first, others, what, bar in (
        (one, [LOCAL], LOCAL, 0.92 if near else None),
        (EVALUATE, [one], one, 0.9 if near else None),
        (one, [LOOP_64], LOOP_64, 2.6 if near else None),
        (one, [LOOP_128], LOOP_128, 4.6 if near else None),
        (two, [LOOP_64_TWICE], LOOP_64_TWICE, None),
        (two, [LOOP_64] if far else [], LOOP_64, 8.0 if at_headline else None),
        (two, libraries, "best of gather_for_metrics, Trainer.predict", {0: 1.5, HEADLINE: 4.0}.get(far)),
    ):
        report.compare(f"{group}: {first} / {what}", (group, first), *((group, other) for other in others), bar=bar)
    for batches in options.in_flight if far else ():
        alone = with_ranks(1) + in_flight(batches)
        for ranks in options.ranks:
            if ranks > 1:
                bar = 3.6 if (ranks, batches) == (4, 1) else None
                name = with_ranks(ranks) + in_flight(batches)
                report.compare(f"{group}: {name} / {alone}", (group, name), (group, alone), bar=bar)


def _compare_with_near(report: Report, groups: dict[int, str], far: int, options: argparse.Namespace) -> None:
    for ranks in options.ranks:
        name = with_ranks(ranks)
        bar = 0.85 if (far, ranks) == (HEADLINE, 2) else None
        here = (groups.get(0, ""), name)
        report.compare(f"{groups[far]}: {name} / the same at 0 ms", (groups[far], name), here, bar=bar)


PROGRAM = Program(
    "throughput",
    QUESTION,
    measure,
    rows=2048,
    quick={"bases": ["64x4"], "rows": 64, "round_trips": [HEADLINE], "ranks": [1, 2]},
)
PROGRAM.add("--bases", (str(SMALL), str(MEDIUM), str(WIDE)), "base models", choices=SIZES)
PROGRAM.add("--round-trips", (0,), "milliseconds")
PROGRAM.add("--ranks", (1, 2, 4), "numbers of ranks of dist_eval")
PROGRAM.add("--in-flight", (0,), "requests in flight of a rank of dist_eval; 0: found out by itself")
PROGRAM.add("--contenders", KINDS, "who competes; dist_eval always does", choices=KINDS)

if __name__ == "__main__":
    PROGRAM.main()
