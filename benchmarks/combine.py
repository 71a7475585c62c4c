"""`python -m benchmarks.combine`: the cost of gathering all predictions, proving them complete and writing them.

Real ranks exchange synthetic predictions of two classes over gloo: four under torchrun, and many with small shards. The
evaluator's implementation is compared, in the same processes, with the two common ones: a list of dictionaries through
all_gather_object, and padded tensors through all_gather.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import harness, ranks
from benchmarks.program import run_program
from benchmarks.ranks import MEBIBYTE, Phase

QUESTION = "What does it take to combine the predictions of all ranks?"
OURS, DICTIONARIES, TENSORS = "dist_eval", "dictionaries", "tensors"
NAMES = {
    OURS: "dist_eval",
    DICTIONARIES: "all_gather_object of dictionaries",
    TENSORS: "all_gather of padded tensors",
}
_TOGETHER, _ALONE = ("gather", "reduce"), ("proof", "metrics", "parquet")
_LEAST_GROWTH = 1.0
"""Growth in MiB that is attributed to the allocator and counts as none."""

_SHARE_OF_MEMORY = 0.6

Measured = dict[str, list[dict[str, Phase]]]
"""Phases of each rank, by implementation."""


@dataclass(frozen=True)
class Case:
    """A case of the benchmark.

    Attributes:
        examples: number of predictions on all ranks together.
        ranks: number of ranks.
        forked: whether they share their imports (see `benchmarks.combine_rank`).
    """

    examples: int
    ranks: int
    forked: bool = False

    def __str__(self) -> str:
        return f"{self.examples:,} predictions on {self.ranks} ranks"

    def run(self, ways: list[str], scratch_dir: Path) -> Measured:
        """Runs each implementation once."""
        for way in ways:
            (scratch_dir / way).mkdir(exist_ok=True)
        arguments = [str(scratch_dir), str(self.examples), *ways]
        launcher = [] if self.forked else ranks.torchrun(self.ranks)
        forked = ["--forked", str(self.ranks)] if self.forked else []
        ranks.run([*launcher, "-m", "benchmarks.combine_rank", *forked, *arguments], scratch_dir)
        return {way: [rank.phases for rank in ranks.read_ranks(scratch_dir / way, self.ranks)] for way in ways}


CASES = (Case(1_000_000, 4), Case(10_000_000, 4), Case(6_400, 64, forked=True))
QUICK_CASES = (Case(100_000, 4), Case(800, 8, forked=True))


class Reports:
    """The three reports: seconds, memory, bytes sent."""

    def __init__(self, options: argparse.Namespace) -> None:
        make = harness.Report
        self.seconds = make("combine", QUESTION, unit="s", options=options, more_is_better=False)
        self.memory = make(
            "combine-memory",
            "How much memory is resident at most in a rank that combines predictions, its own ones and all libraries "
            "included?",
            unit="MiB",
            options=options,
            more_is_better=False,
        )
        self.bytes = make(
            "combine-bytes",
            "How many bytes do all ranks together send to combine predictions, for each of them?",
            unit="bytes/example",
            options=options,
            more_is_better=False,
        )

    def add(self, case: Case, measured: Measured) -> None:
        """Adds one run of all implementations."""
        group = str(case)
        for way, phases in measured.items():
            name, leader = NAMES[way], phases[0]
            seconds = {step: max(rank[step].seconds for rank in phases if step in rank) for step in leader}
            for step in (*_TOGETHER, *_ALONE):
                if step in seconds:
                    self.seconds.add(group, f"{name}: {step}", seconds[step])
            if way == OURS:
                self.seconds.add(group, f"{name}: all", sum(seconds.values()))
            for who, some in (("rank 0", phases[:1]), ("another rank", phases[1:])):
                self.memory.add(group, f"{name}: {who}", max(rank["gather"].peak for rank in some) / MEBIBYTE)
                growth = max(rank["gather"].growth for rank in some) / MEBIBYTE
                self.memory.add(group, f"{name}: {who} grows by", max(_LEAST_GROWTH, growth))
            if way == OURS:
                after = max(leader[step].peak for step in _ALONE)
                self.memory.add(group, f"{name}: rank 0, {' and '.join(_ALONE)}", after / MEBIBYTE)
            sent = sum(rank[step].sent for rank in phases for step in _TOGETHER if step in rank)
            self.bytes.add(group, name, sent / case.examples, {"sent": sent})

    def compare(self, cases: tuple[Case, ...]) -> None:
        """Compares the implementations with each other, and the large case with the small one."""
        small, large = map(str, cases[:2])
        for case in map(str, cases):
            for way in (DICTIONARIES, TENSORS):
                name, ours = NAMES[way], f"{NAMES[OURS]}: gather"
                if (case, name) not in self.bytes.series:
                    continue
                claim = f"{case}: {name} / dist_eval"
                self.seconds.compare(f"{claim}, gather", (case, f"{name}: gather"), (case, ours))
                self.bytes.compare(claim, (case, name), (case, NAMES[OURS]))
                for who in ("rank 0", "another rank"):
                    self.memory.compare(f"{claim}, {who}", (case, f"{name}: {who}"), (case, f"{NAMES[OURS]}: {who}"))
        if cases[0].ranks != cases[1].ranks:
            return
        growth = f"{NAMES[OURS]}: another rank grows by"
        bar = None if self.memory.options["quick"] else 1.5  # an incomplete round needs less
        self.memory.compare(f"{growth}, {large} / {small}", (large, growth), (small, growth), bar=bar, at_most=True)

    def finish(self) -> None:
        """Prints the tables and writes the files."""
        for report in (self.seconds, self.memory, self.bytes):
            report.finish()


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures all cases.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    reports, cases = Reports(options), QUICK_CASES if options.quick else CASES
    needed_for_each = 0.0
    for case in cases:
        ways = [OURS, TENSORS, DICTIONARIES]
        needed = needed_for_each * case.examples
        if needed > _SHARE_OF_MEMORY * psutil.virtual_memory().available:
            ways.remove(DICTIONARIES)
            reports.memory.note(
                f"{case}: left out {NAMES[DICTIONARIES]}, which would need about {needed / 2**30:.0f} GiB on all "
                "ranks together, judging by the smaller case."
            )
        for _ in range(1 if options.quick else options.rounds):
            measured = case.run(ways, scratch_dir)
            reports.add(case, measured)
        if DICTIONARIES in measured and not case.forked:
            needed_for_each = memory_of_dictionaries(measured) / case.examples
    reports.compare(cases)
    reports.seconds.note(
        "A step's seconds are the slowest rank's; proof, metrics and parquet are done by rank 0 alone. In all ways the "
        "gather ends with arrays on rank 0 in the dataset's order."
    )
    reports.seconds.note(
        f"The {cases[-1].ranks} ranks are forked from one process that has imported everything, because each import "
        "takes about 300 MB; they are started by torchrun's agent, as the others."
    )
    reports.finish()


def memory_of_dictionaries(measured: Measured) -> int:
    """Returns the bytes that dictionaries need on all ranks together, in excess of our implementation."""
    needed = 0
    for ours, theirs in zip(measured[OURS], measured[DICTIONARIES], strict=True):
        needed += max(0, theirs["gather"].peak - ours["gather"].before)
    return needed


def main() -> None:
    """Runs the command line."""
    options = harness.parser("combine", QUESTION, rounds=3).parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
