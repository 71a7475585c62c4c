"""`python -m benchmarks.startup`: the time until the help is shown, and until the first forward pass is sent.

Unavoidable parts are measured in the same rounds: the start of Python and of torchrun, and a client that only imports
hivemind and transformers' Llama and connects to the same swarm.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks.contenders import with_ranks
from benchmarks.harness import Program, Report
from benchmarks.models import Model, Size
from benchmarks.processes import call, run_dist_eval
from benchmarks.swarms import swarm_of
from dist_eval import demo

QUESTION = "How long does it take until the help is shown, and until the first forward is sent?"
HELP, NOTHING = "dist_eval --help", "python -c pass"
CLIENT, TORCHRUN = "client that only connects", "torchrun alone, until its rank begins"
_TO_HELP, _TO_FORWARD, _CPU = "until the help is shown", "until the first forward is sent", "CPU, whole run, all ranks"
_HELP_SECONDS, _FURTHER_SECONDS = 1.0, 1.5
_ROWS = 64


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures everything."""
    report = Report("startup", QUESTION, unit="s", options=options, more_is_better=False)
    seconds_of("-m", "dist_eval", "--help")  # warm-up: fills the file cache and compiles bytecode
    for _ in range(options.rounds):
        report.add(_TO_HELP, NOTHING, seconds_of("-c", "pass"))
        report.add(_TO_HELP, HELP, seconds_of("-m", "dist_eval", "--help"))
    dataset = scratch_dir / "rows.csv"
    lines = demo.TEST_DATA.read_text(encoding="utf-8").splitlines()
    dataset.write_text("\n".join(lines[: _ROWS + 1]) + "\n", encoding="utf-8")
    with swarm_of(Model(Size(hidden=128, layers=4), demo.BASE_MODEL, demo.CHECKPOINT), scratch_dir) as swarm:
        if not options.quick:
            run_once(1, dataset, swarm.initial_peers, scratch_dir)
        for _ in range(options.rounds):
            _add_round(report, options.ranks, dataset, swarm.initial_peers, scratch_dir)
    _compare(report, max(options.ranks))
    report.note(
        "A client that only connects imports hivemind and transformers' Llama, starts its DHT node and leaves. With "
        f"several ranks the last one counts. The swarm has two servers on this host; {_ROWS} rows are evaluated, their "
        "forwards and the report are part of the CPU seconds."
    )
    report.finish()


def connect(ranks: int | None, peers: list[str], scratch_dir: Path) -> tuple[float, float, float]:
    """Starts clients that only connect, under torchrun if a number of ranks is given.

    Returns:
        Seconds until the last client started and until it was connected, and the CPU seconds of all.
    """
    start, used = time.time(), _cpu_seconds()
    moments = call("benchmarks.alternatives.connect:connect", scratch_dir, ranks=ranks, peers=peers)
    began, connected = (max(found[name] for found in moments) - start for name in ("began", "connected"))
    return began, connected, _cpu_seconds() - used


def run_once(ranks: int, dataset: Path, peers: list[str], scratch_dir: Path) -> tuple[float, float]:
    """Runs dist_eval.

    Returns:
        Seconds until the last rank sent its first batch, and the CPU seconds of the whole run.
    """
    start, used = time.time(), _cpu_seconds()
    arguments = ["--model", demo.BASE_MODEL, "--checkpoint", demo.CHECKPOINT, "--dataset", dataset]
    results, _ = run_dist_eval(scratch_dir, *arguments, "--initial-peers", *peers, ranks=ranks)
    began = max(datetime.fromisoformat(rank["began"]).timestamp() for rank in results["ranks"])
    return began - start, _cpu_seconds() - used


def _add_round(report: Report, all_ranks: Sequence[int], dataset: Path, peers: list[str], scratch_dir: Path) -> None:
    used: dict[str, float] = {}
    _, seconds, used[_client(None)] = connect(None, peers, scratch_dir)
    report.add(_TO_FORWARD, _client(None), seconds)
    for ranks in all_ranks:
        began, seconds, used[_client(ranks)] = connect(ranks, peers, scratch_dir)
        if ranks == 1:
            report.add(_TO_FORWARD, TORCHRUN, began)
        report.add(_TO_FORWARD, _client(ranks), seconds)
        seconds, used[with_ranks(ranks)] = run_once(ranks, dataset, peers, scratch_dir)
        report.add(_TO_FORWARD, with_ranks(ranks), seconds)
    for name, seconds in used.items():
        report.add(_CPU, name, seconds)


def _compare(report: Report, most: int) -> None:
    report.bound("seconds until the help", report.series[_TO_HELP, HELP].values, _HELP_SECONDS)
    report.compare(f"{HELP} / {NOTHING}", (_TO_HELP, HELP), (_TO_HELP, NOTHING))
    ours = report.series[_TO_FORWARD, with_ranks(1)].values
    for client, bar in ((_client(None), None), (_client(1), _FURTHER_SECONDS)):
        more = [a - b for a, b in zip(ours, report.series[_TO_FORWARD, client].values, strict=True)]
        report.bound(f"seconds that {with_ranks(1)} takes more than {client}", more, bar)
    for first, second in ((with_ranks(most), with_ranks(1)), (_client(most), _client(1))):
        for group, what in ((_TO_FORWARD, "time"), (_CPU, "CPU")) if most > 1 else ():
            report.compare(f"{first} / {second}, {what}", (group, first), (group, second))


def seconds_of(*arguments: str) -> float:
    """Returns the duration of a Python program."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def _client(ranks: int | None) -> str:
    return f"{CLIENT}, plain process" if ranks is None else with_ranks(ranks).replace("dist_eval", CLIENT)


def _cpu_seconds() -> float:
    """Returns the CPU seconds of all children that have ended so far."""
    times = os.times()
    return times.children_user + times.children_system


PROGRAM = Program("startup", QUESTION, measure, rounds=5, quick={"ranks": [1]})
PROGRAM.add("--ranks", (1, 2, 4), "numbers of ranks")

if __name__ == "__main__":
    PROGRAM.main()
