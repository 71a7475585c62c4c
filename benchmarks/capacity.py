"""`python -m benchmarks.capacity`: estimates the resources of a large run, and which is exhausted first.

Each need is a simple formula of the run's size and of constants that are measured here at small scale, with the
evaluator's own code, or that are assumptions and options of the command line. The limits of the cluster are options,
too. Nothing was run at that size.
"""

from __future__ import annotations

import argparse
import json
import resource
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.capacity_inputs import Measured, measure_inputs
from benchmarks.combine_rank import LABELS
from benchmarks.program import run_program
from dist_eval.data.collector import row_bytes
from dist_eval.distributed import collectives, progress, rank_store
from dist_eval.metrics.predictions import Predictions

QUESTION = "Which time, bytes, memory, files and collectives does a large run need, and which is exhausted first?"
_HOUR, _GIB, _TERA = 3600.0, float(1 << 30), 1e12
_LINEAR_ROWS = 1_000_000
"""Number of predictions above which the time of intervals is linear; below, it is limited by the amount of work."""

_FLOPS_FOR_A_PARAMETER = 2
"""A multiplication and an addition for each token, in a forward pass."""


@dataclass(frozen=True)
class Need:
    """A resource that one part of a run needs.

    Attributes:
        part: name of the part.
        kind: time, memory, disk, network, files or requests.
        value: the amount needed.
        limit: the amount available.
        unit: unit of both.
        inputs: the inputs of the estimate, as text.
    """

    part: str
    kind: str
    value: float
    limit: float
    unit: str
    inputs: str

    @property
    def share(self) -> float:
        """Share of the limit that is needed."""
        return self.value / self.limit


def needs(options: argparse.Namespace, known: Measured) -> list[Need]:
    """Estimates all needs.

    Args:
        options: the run's size, the assumptions and the limits (see `build_parser`).
        known: the measured constants.

    Returns:
        The needs of each part.
    """
    return [*_needs_of_the_swarm(options), *_needs_before_and_after(options, known), *_needs_of_ranks(options, known)]


def batches(options: argparse.Namespace) -> float:
    """Returns the number of batches of the run."""
    return float(np.ceil(options.examples / max(1, options.token_budget // (options.tokens + options.prompts))))


def _needs_of_the_swarm(options: argparse.Namespace) -> list[Need]:
    tokens = float(options.examples) * (options.tokens + options.prompts)
    servers = options.blocks / options.blocks_of_a_server
    flops = _FLOPS_FOR_A_PARAMETER * options.parameters * 1e9 * tokens
    # each server receives and returns the hidden states; deep prompts are sent once with each request
    there_and_back = 2 * tokens * options.hidden * options.bytes_of_a_number * servers
    prompts = batches(options) * options.blocks * options.prompts * options.hidden * options.bytes_of_a_number
    sent = there_and_back + prompts
    computing = flops / (servers * options.replicas * options.teraflops * _TERA)
    by_servers, by_ranks = (
        sent / (count * options.gigabits * 1e9 / 8) for count in (servers * options.replicas, options.ranks)
    )
    assumed = "assumed: --gigabits of a server's and a rank's network, half of it each way"
    return [
        Need("swarm: computing", "time", computing / _HOUR, options.hours, "h", "assumed: --teraflops of a server"),
        Need("swarm: bytes through the servers", "time", by_servers / _HOUR, options.hours, "h", assumed),
        Need("swarm: bytes through the ranks", "time", by_ranks / _HOUR, options.hours, "h", assumed),
        Need(
            "swarm: connections of a server",
            "files",
            float(options.ranks + servers * options.replicas),
            4096,
            "files",
            "one for each rank and server; Petals' limit",
        ),
    ]


def _needs_before_and_after(options: argparse.Namespace, known: Measured) -> list[Need]:
    examples, tokens = float(options.examples), float(options.examples) * options.tokens
    tail = sum(known.tail.values()) * examples + known.intervals * max(1.0, examples / max(known.rows, _LINEAR_ROWS))
    journal = batches(options) * known.record_bytes + examples * 4 * len(LABELS)
    on_host = tokens * known.token_bytes
    steps = ", ".join(known.tail)
    of_host = options.ranks_of_a_host * (known.plan_bytes * examples) / _GIB
    rank_0 = examples * (known.leader_bytes + known.plan_bytes) / _GIB
    return [
        Need(
            "tokenizing, on each host",
            "time",
            tokens * known.tokenizing / _HOUR,
            options.hours,
            "h",
            "seconds for a token",
        ),
        Need("tokens, on each host", "disk", on_host / _GIB, options.disk, "GiB", "bytes of a token on the disk"),
        Need(
            "planning, in each rank",
            "time",
            examples * known.planning / _HOUR,
            options.hours,
            "h",
            "seconds for an example",
        ),
        Need("plan, in the ranks of a host", "memory", of_host, options.memory, "GiB", "bytes of the plan"),
        Need("journal, on the shared folder", "disk", journal / _GIB, options.disk, "GiB", "bytes of a record"),
        Need(
            "journal read at a restart, on each host",
            "time",
            batches(options) * known.reading / _HOUR,
            options.hours,
            "h",
            "reading a record",
        ),
        Need(
            "predictions on rank 0",
            "memory",
            rank_0,
            options.memory,
            "GiB",
            "bytes of a prediction on rank 0, and of the plan",
        ),
        Need(f"rank 0 alone: {steps}, intervals", "time", tail / _HOUR, options.hours, "h", "rank 0's steps"),
    ]


def _needs_of_ranks(options: argparse.Namespace, known: Measured) -> list[Need]:
    count, examples = options.ranks, float(options.examples)
    of_a_rank = collectives._rows_of_a_rank(count, row_bytes(Predictions.empty(len(LABELS)).columns))
    rounds = np.ceil(examples / count / of_a_rank)
    packed = examples * (known.row_bytes - 11)  # positions in 4 bytes, labels in 1
    requests = 7 / max(progress._REPORT_SECONDS, count * progress._REPORT_SECONDS_FOR_A_RANK)
    waiting = 2 / max(rank_store._POLL_SECONDS, count * rank_store._SECONDS_FOR_A_RANK)
    per_second = count * (requests + waiting)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        Need(
            "gather, all_gather_object",
            "time",
            rounds * (2 * count * known.hop) / _HOUR,
            options.hours,
            "h",
            f"{rounds:.0f} rounds of 2 collectives of {count} hops; a hop",
        ),
        Need(
            "gather, received by each rank",
            "time",
            packed / (options.gigabits * 1e9 / 8) / _HOUR,
            options.hours,
            "h",
            "assumed: --gigabits; bytes of a prediction",
        ),
        Need("process group, opened", "time", count * known.opening / _HOUR, options.hours, "h", "opening, for a rank"),
        Need(
            "process group, connections of a rank",
            "files",
            count * max(1.0, known.group_files),
            float(min(hard, 1 << 16)) if hard > 0 else float(1 << 16),
            "files",
            "files for each other rank; the system's hard limit here",
        ),
        Need("store, connections", "files", 3.0 * count, 65536.0, "files", "up to 3 for each rank"),
        Need(
            "store, all ranks report and wait",
            "requests",
            per_second,
            known.requests,
            "requests/s",
            "requests of one client in a second",
        ),
    ]


def table(found: list[Need]) -> str:
    """Returns the needs as a table, the most exhausted resource first."""
    lines = [f"{'':<58}{'needed':>12}{'available':>12}  {'':<11}{'share':>9}  from"]
    for need in sorted(found, key=lambda one: -one.share):
        lines.append(
            f"{need.part:<58}{need.value:>12,.3g}{need.limit:>12,.6g}  {need.unit:<11}{need.share:>9.1%}  {need.inputs}"
        )
    return "\n".join(lines)


def verdict(found: list[Need]) -> str:
    """Returns a sentence on which resource is exhausted first."""
    first = max(found, key=lambda one: one.share)
    word = "is exhausted" if first.share > 1 else "would be exhausted"
    return (
        f"{first.part} {word} first: it needs {first.value:,.3g} {first.unit}, {first.share:.0%} of the limit of "
        f"{first.limit:,.6g}."
    )


def build_parser() -> argparse.ArgumentParser:
    """Builds the command line's parser."""
    parser = harness.parser("capacity", QUESTION, rounds=1)
    sizes = parser.add_argument_group("the run")
    sizes.add_argument("--ranks", type=int, default=1_000)
    sizes.add_argument("--ranks-of-a-host", type=int, default=8)
    sizes.add_argument("--examples", type=int, default=100_000_000)
    sizes.add_argument("--tokens", type=int, default=25, help="of an example, without prompts (default: 25)")
    sizes.add_argument("--prompts", type=int, default=16, help="prompt tokens of each example (default: 16)")
    sizes.add_argument("--token-budget", type=int, default=1024)
    swarm = parser.add_argument_group("the swarm")
    swarm.add_argument("--blocks", type=int, default=70)
    swarm.add_argument("--parameters", type=float, default=70.0, metavar="BILLIONS")
    swarm.add_argument("--hidden", type=int, default=8192)
    swarm.add_argument("--bytes-of-a-number", type=int, default=2, help="as servers compute (default: 2, bfloat16)")
    swarm.add_argument("--blocks-of-a-server", type=int, default=10)
    swarm.add_argument("--replicas", type=int, default=10, help="servers that hold each block (default: 10)")
    swarm.add_argument("--teraflops", type=float, default=100.0, help="that a server reaches (default: 100)")
    limits = parser.add_argument_group("available resources")
    limits.add_argument("--hours", type=float, default=24.0, help="for each step (default: 24)")
    limits.add_argument("--memory", type=float, default=64.0, metavar="GIB", help="of a host (default: 64)")
    limits.add_argument("--disk", type=float, default=200.0, metavar="GIB", help="of a folder (default: 200)")
    limits.add_argument("--gigabits", type=float, default=10.0, help="a second, of each host (default: 10)")
    return parser


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures the inputs, estimates the needs, and prints and writes them.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    known = measure_inputs(scratch_dir, options.quick)
    found = needs(options, known)
    print("measured here:")
    for name, value in asdict(known).items():
        print(f"  {name}: {json.dumps(value) if isinstance(value, (dict, tuple)) else f'{value:.4g}'}")
    print(
        f"\n{options.ranks:,} ranks, {options.examples:,} examples in {batches(options):,.0f} batches, "
        f"{options.blocks} blocks with {options.parameters:g} billion parameters:\n"
    )
    print(table(found))
    print(f"\n{verdict(found)}")
    options.output.mkdir(parents=True, exist_ok=True)
    content = {
        "question": QUESTION,
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "measured": asdict(known),
        "needs": [{**asdict(need), "share": need.share} for need in found],
        "verdict": verdict(found),
    }
    (options.output / "capacity.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Runs the command line."""
    options = build_parser().parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
