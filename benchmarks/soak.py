"""`python -m benchmarks.soak`: does a run stay as it began, for an hour and a hundred thousand requests?

Two ranks evaluate a tiny model on a swarm of two stages with two replicas each, whose servers are killed and started
again in turn. Memory, open files and threads of the ranks and of their DHT nodes are read from the system all the time,
and so is the number of finished batches. The run is stopped in the end, as a user would stop it.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.chaos import Run, replicated_swarm, restart, wait_for, wait_until_up, write_rows
from benchmarks.harness import BenchmarkError, Program, Report
from benchmarks.meter import MEBIBYTE
from dist_eval.petals.server.private import PrivateSwarm

QUESTION = "Does a run stay as fast and as small as it began?"
KINDS = ("memory, MiB", "open files", "threads")
_GROUP = "all ranks together"
_SPANS = [(0, 2), (2, 4)] * 2
_STAGES = len(set(_SPANS))
# the first tenth is left out of the slopes, the rest averaged to this many values, which depend less on each other
_TENTHS, _BLOCKS = 10, 27
# rows of the embedded test data, and more than a swarm on one host gets through: the run does not end by itself
_DEMO_ROWS, _ROWS_PER_SECOND = 596, 800
_RECORD = b"deB1"  # with which each batch of a journal begins
_MOST_GROWTH, _LEAST_SPEED, _LEAST_REQUESTS = 0.02, 0.95, 100_000


@dataclass(frozen=True)
class Sample:
    """What was read at a time.

    Attributes:
        seconds: since the first finished batch.
        journal: bytes of the finished batches.
        used: by role and kind, such as ("rank 0", "threads").
    """

    seconds: float
    journal: int
    used: dict[tuple[str, str], float]


def sample(run: Run, begin: float) -> Sample:
    """Reads what the processes of a run take; the memory is without mapped files.

    What a DHT node has in common with the rank that it was forked from counts twice: pages that only one of them writes
    to would otherwise look like growth of both.
    """
    used: defaultdict[tuple[str, str], float] = defaultdict(float)
    journal = run.journal_size()
    for number in run.processes():
        with suppress(psutil.Error):
            process = psutil.Process(number)
            role, memory = _role(process, run), process.memory_info()
            values = ((memory.rss - memory.shared) / MEBIBYTE, process.num_fds(), process.num_threads())
            for kind, value in zip(KINDS, values, strict=True):
                used[role, kind] += value
    return Sample(time.monotonic() - begin, journal, dict(used))


def _role(process: psutil.Process, run: Run) -> str:
    assert run.agent is not None
    if process.name() == "p2pd":
        return "p2p daemons"
    if process.pid == run.agent.pid:
        return "torchrun"
    return f"rank {process.environ()['RANK']}" if process.ppid() == run.agent.pid else "DHT nodes"


def growth(samples: list[Sample], kind: tuple[str, str]) -> tuple[float, float, float]:
    """Returns how much something grows in an hour, as a share of its mean: the slope and its 95% interval.

    Theil and Sen's slope (`scipy.stats.theilslopes`) of means of consecutive samples.
    """
    from scipy.stats import theilslopes

    blocks = np.array_split(np.arange(len(samples)), min(_BLOCKS, len(samples)))
    values = np.array([sample.used.get(kind, np.nan) for sample in samples])
    hours = np.array([sample.seconds for sample in samples]) / 3600
    means = np.array([np.nanmean(values[block]) for block in blocks])
    slope, _, low, high = theilslopes(means, [hours[block].mean() for block in blocks])
    slope, low, high = (float(value / means.mean()) for value in (slope, low, high))
    return slope, low, high


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Runs for the time that is wanted."""
    report = Report("soak", QUESTION, unit="examples/s", options=options)
    seconds = 60 * options.minutes
    rows = write_rows(scratch_dir / "rows.csv", int(seconds * _ROWS_PER_SECOND / _DEMO_ROWS) + 1)
    with replicated_swarm(scratch_dir, _SPANS) as swarm:
        run = Run(rows, scratch_dir / "run", scratch_dir, swarm.initial_peers)
        samples = watch(run, swarm, seconds, options.restart_every)
    finished = run.results()["coverage"]["seen"]
    times = np.array([sample.seconds for sample in samples])
    done = np.array([sample.journal for sample in samples]) * finished / samples[-1].journal
    edges = np.linspace(0, times[-1], _TENTHS + 1)
    speeds = np.diff(np.interp(edges, times, done)) / np.diff(edges)
    names = [f"dist_eval, tenth {number}" for number in range(1, _TENTHS + 1)]
    for name, speed in zip(names, speeds, strict=True):
        report.add(_GROUP, name, float(speed))
    report.compare("speed of the last tenth / of the first", (_GROUP, names[-1]), (_GROUP, names[0]), bar=_LEAST_SPEED)
    later = [sample for sample in samples if sample.seconds >= edges[1]]
    for kind in sorted({kind for sample in later for kind in sample.used if kind[0] != "torchrun"}):
        report.bound(f"{' '.join(kind)}: growth of an hour", growth(later, kind), _MOST_GROWTH)
    requests = _STAGES * sum(path.read_bytes().count(_RECORD) for path in (run.output / "journal").glob("*.batches"))
    report.bound("requests", [requests], _LEAST_REQUESTS, at_most=False)
    report.note(
        f"{finished} examples in {times[-1]:.0f} s. A growth is a share of the mean, without the first tenth of the "
        "time, with its 95% interval."
    )
    report.finish()


def watch(run: Run, swarm: PrivateSwarm, seconds: float, restart_every: float) -> list[Sample]:
    """Samples a run for some time while servers are killed and started again, and stops it.

    Args:
        run: the run, not started yet.
        swarm: its swarm.
        seconds: how long, from the first finished batch.
        restart_every: seconds between two kills.
    """
    agent = run.start(2)
    try:
        wait_for(lambda: run.journal_size() > 0 or agent.poll() is not None, "the run to begin")
        begin, number = time.monotonic(), 0
        samples, kill_at = [sample(run, begin)], restart_every
        while samples[-1].seconds < seconds:
            time.sleep(seconds / 240)
            if agent.poll() is not None:
                raise BenchmarkError(f"the run has ended too soon:\n{run.last_words()}")
            samples.append(sample(run, begin))
            if samples[-1].seconds >= kill_at:
                wait_until_up(swarm, (number - 1) % len(_SPANS))  # or blocks would have no server at all
                swarm.kill_server(number % len(_SPANS))
                restart(swarm, number % len(_SPANS))
                number, kill_at = number + 1, kill_at + restart_every
        agent.send_signal(signal.SIGTERM)
        run.wait()
    finally:
        run.kill()
    return samples


PROGRAM = Program("soak", QUESTION, measure, rounds=1, quick={"minutes": 2 / 3, "restart_every": 15.0})
PROGRAM.add("--minutes", 60.0, "how long")
PROGRAM.add("--restart-every", 120.0, "seconds between kills of a server")

if __name__ == "__main__":
    PROGRAM.main()
