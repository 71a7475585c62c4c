"""`python -m benchmarks.startup`: the time until the help is shown, and until the first forward pass is sent.

Unavoidable parts are measured in the same rounds: the start of Python and of torchrun, and a client that only imports
hivemind and transformers' Llama and connects to the same swarm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks import harness, ranks
from benchmarks.harness import Report
from benchmarks.hosting import swarm_of
from benchmarks.models import Model, Size
from benchmarks.program import run_program
from dist_eval import demo

QUESTION = "How long does it take until the help is shown, and until the first forward is sent?"
RANKS, QUICK_RANKS = (1, 2, 4), (1,)
HELP, NOTHING = "dist_eval --help", "python -c pass"
OURS, CLIENT, TORCHRUN = "dist_eval", "client that only connects", "torchrun alone, until its rank begins"
PLAIN = "plain process"
_TO_HELP, _TO_FORWARD, _CPU = "until the help is shown", "until the first forward is sent", "CPU, whole run, all ranks"
_HELP_SECONDS, _FURTHER_SECONDS = 1.0, 1.5
_ROWS = 64


class Starts:
    """Starts programs on one swarm and measures the time to certain points.

    Args:
        model: the base model and the checkpoint.
        peers: addresses of the swarm.
        scratch_dir: folder for temporary files.
    """

    def __init__(self, model: Model, peers: Sequence[str], scratch_dir: Path) -> None:
        self._model, self._peers, self._scratch_dir = model, list(peers), scratch_dir
        self._dataset = scratch_dir / "rows.csv"
        lines = demo.TEST_DATA.read_text(encoding="utf-8").splitlines()
        self._dataset.write_text("\n".join(lines[: _ROWS + 1]) + "\n", encoding="utf-8")

    def client(self, world_size: int | None) -> tuple[float, float, float]:
        """Starts clients that only connect, under torchrun if a number of ranks is given.

        Returns:
            Seconds until the last client started and until it was connected, and the CPU seconds of all.
        """
        launcher = [] if world_size is None else ranks.torchrun(world_size)
        start, used = time.time(), _cpu_seconds()
        arguments = [*launcher, "-m", "benchmarks.startup_client", str(self._scratch_dir), *self._peers]
        ranks.run(arguments, self._scratch_dir)
        files = [self._scratch_dir / f"client-{rank}.json" for rank in range(world_size or 1)]
        moments = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        began, connected = (max(one[name] for one in moments) - start for name in ("began", "connected"))
        return began, connected, _cpu_seconds() - used

    def dist_eval(self, world_size: int) -> tuple[float, float]:
        """Starts a run.

        Returns:
            Seconds until the last rank sent its first batch, and the CPU seconds of the whole run.
        """
        output = self._scratch_dir / "output"
        arguments = ["-m", "dist_eval", "--model", self._model.base, "--checkpoint", self._model.tuned]
        arguments += ["--dataset", self._dataset, "--output", output, "--overwrite", "--initial-peers", *self._peers]
        start, used = time.time(), _cpu_seconds()
        ranks.run([*ranks.torchrun(world_size), *map(str, arguments)], self._scratch_dir)
        entries = json.loads((output / "results.json").read_text(encoding="utf-8"))["ranks"]
        began = max(datetime.fromisoformat(entry["began"]).timestamp() for entry in entries)
        return began - start, _cpu_seconds() - used


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Measures everything.

    Args:
        options: the command line.
        scratch_dir: folder for temporary files.
    """
    report = Report("startup", QUESTION, unit="s", options=options, more_is_better=False)
    world_sizes = QUICK_RANKS if options.quick else RANKS
    rounds = 1 if options.quick else options.rounds
    seconds_of(["-m", "dist_eval", "--help"])  # warm-up: fills the file cache and compiles bytecode
    for _ in range(rounds):
        report.add(_TO_HELP, NOTHING, seconds_of(["-c", "pass"]))
        report.add(_TO_HELP, HELP, seconds_of(["-m", "dist_eval", "--help"]))
    model = Model(Size(hidden=128, layers=4), demo.BASE_MODEL, demo.CHECKPOINT)
    with swarm_of(model, scratch_dir) as swarm:
        starts = Starts(model, swarm.initial_peers, scratch_dir)
        if not options.quick:
            starts.dist_eval(1)
        for _ in range(rounds):
            _add_round(report, starts, world_sizes)
    _compare(report, max(world_sizes))
    report.note(
        "A client that only connects imports hivemind and transformers' Llama, starts its DHT node and leaves. With "
        f"several ranks the last one counts. The swarm has two servers on this host; {_ROWS} rows are evaluated, their "
        "forwards and the report are part of the CPU seconds."
    )
    report.finish()


def _add_round(report: Report, starts: Starts, world_sizes: Sequence[int]) -> None:
    used: dict[str, float] = {}
    _, seconds, used[_name(CLIENT, None)] = starts.client(None)
    report.add(_TO_FORWARD, _name(CLIENT, None), seconds)
    for number in world_sizes:
        began, seconds, used[_name(CLIENT, number)] = starts.client(number)
        if number == 1:
            report.add(_TO_FORWARD, TORCHRUN, began)
        report.add(_TO_FORWARD, _name(CLIENT, number), seconds)
        seconds, used[_name(OURS, number)] = starts.dist_eval(number)
        report.add(_TO_FORWARD, _name(OURS, number), seconds)
    for name, seconds in used.items():
        report.add(_CPU, name, seconds)


def _compare(report: Report, most: int) -> None:
    nothing, ours, client = (_TO_HELP, NOTHING), (_TO_FORWARD, _name(OURS, 1)), (_TO_FORWARD, _name(CLIENT, 1))
    report.bound("seconds until the help", report.series[_TO_HELP, HELP].values, _HELP_SECONDS)
    report.compare(f"{HELP} / {NOTHING}", (_TO_HELP, HELP), nothing)
    for reference, bar in (((_TO_FORWARD, _name(CLIENT, None)), None), (client, _FURTHER_SECONDS)):
        pairs = zip(report.series[ours].values, report.series[reference].values, strict=True)
        report.bound(f"seconds that {ours[1]} takes more than {reference[1]}", [a - b for a, b in pairs], bar)
    for name in (OURS, CLIENT) if most > 1 else ():
        claim = f"{name}: {most} ranks / 1 rank"
        for group, what in ((_TO_FORWARD, "time"), (_CPU, "CPU")):
            report.compare(f"{claim}, {what}", (group, _name(name, most)), (group, _name(name, 1)))


def seconds_of(arguments: Sequence[str]) -> float:
    """Returns the duration of a Python program."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def _name(what: str, world_size: int | None) -> str:
    if world_size is None:
        return f"{what}, {PLAIN}"
    return f"{what}, {world_size} rank{'s' if world_size > 1 else ''}"


def _cpu_seconds() -> float:
    """Returns the CPU seconds of all children that have ended so far."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    """Runs the command line."""
    options = harness.parser("startup", QUESTION, rounds=5).parse_args()
    run_program(lambda scratch_dir: measure(options, scratch_dir))


if __name__ == "__main__":
    main()
