"""`python -m benchmarks.chaos`: is anything lost when ranks, servers and whole runs are killed?

A seeded schedule kills and stops the processes of a run, which restarts on a different number of ranks each time, until
it is complete. Its predictions must be byte-identical to those of an undisturbed run. Then the benchmark measures the
time until a run resumes after servers were killed.

With `--sessions`, few-shot prompts precede the texts, and servers compute them once. With `--chains`, six servers have
a part of the blocks each, and pass requests on to each other; runs are only disturbed, not timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import BenchmarkError, Program, Report
from dist_eval import demo
from dist_eval.petals.server.private import PrivateSwarm

QUESTION = "Is anything lost when ranks, servers and whole runs are killed, and how soon does a run resume?"
SOONEST = "seconds without a finished batch"
KILLED, RETURNED = "a server is killed, another one has its blocks", "the only server comes back, from when it is ready"
_BAR_SECONDS = 5.0
_BLOCKS, _REPLICAS, _PREFIX = 4, 2, "chaos"
_WHOLE, _PARTS = ((0, _BLOCKS),) * _REPLICAS, ((0, 1), (1, 3), (3, _BLOCKS)) * _REPLICAS
_WORLD_SIZES = (1, 2, 3)
_TOKEN_BUDGET = 400  # small, so that there are hundreds of batches
_REPEATED = 24
_FEW_SHOT = [
    *("--prompt", "{text}", "--label-words", *(f"<{digit}>" for digit in range(10)), "--label-delimiter", ""),
    *("--few-shot", "3", "--few-shot-from", str(demo.TRAIN_DATA)),
]
_STEP = 0.015  # share of the batches to finish before the next event
_ORPHANS_SECONDS = 30.0
_LAST_CHARACTERS = 5000
_MOST_RESTARTS = 3
_FREEZE_SECONDS, _OUTAGE_SECONDS, _WATCH_SECONDS, _TIMEOUT = 6.0, 10.0, 10.0, 400.0
_OTHER_ERRORS_SHOWN = 3


class Run:
    """A run that is restarted in the same folder until it is complete.

    Args:
        dataset: the dataset file.
        output: the run's folder.
        scratch_dir: folder for temporary files and logs.
        peers: addresses of the swarm; if empty, the model runs in the ranks themselves.
        sessions: whether texts have a common prefix and are sent in sessions.
    """

    def __init__(
        self, dataset: Path, output: Path, scratch_dir: Path, peers: list[str], *, sessions: bool = False
    ) -> None:
        self.output, self._scratch_dir, self.starts, self.orphans = output, scratch_dir, 0, 0
        self.marker = f"CHAOS_{uuid.uuid4().hex}"
        where = ["--initial-peers", *peers, "--dht-prefix", _PREFIX] if peers else ["--backend", "local"]
        self._arguments = [
            *("-m", "dist_eval", "--model", str(demo.BASE_MODEL)),
            *(_FEW_SHOT if sessions else ["--checkpoint", str(demo.CHECKPOINT), "--session-share", "0"]),
            *("--dataset", str(dataset), "--output", str(output), "--token-budget", str(_TOKEN_BUDGET)),
            *("--swarm-timeout", str(_TIMEOUT), "--stop-grace", "5", *where),
        ]
        self.agent: subprocess.Popen[bytes] | None = None

    def start(self, world_size: int) -> subprocess.Popen[bytes]:
        """Starts or restarts the run."""
        self.starts += 1
        with (self._scratch_dir / f"start-{self.starts}.log").open("wb") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={world_size}", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, self.marker: "1", "OMP_NUM_THREADS": "1"},
            )
        return self.agent

    def wait(self) -> int:
        """Waits for the end of the run and, briefly, of its child processes; kills and counts the remaining ones."""
        assert self.agent is not None
        status = self.agent.wait(_TIMEOUT)
        deadline = time.monotonic() + _ORPHANS_SECONDS
        while (late := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.orphans += len(late)
        self.kill()
        return status

    def kill(self) -> None:
        """Kills all remaining processes."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def rank(self, number: int) -> psutil.Process | None:
        """Returns the process of a rank, if it is running."""
        assert self.agent is not None
        with suppress(psutil.Error):
            for child in psutil.Process(self.agent.pid).children():
                if child.environ().get("RANK") == str(number):
                    return child
        return None

    def processes(self) -> list[int]:
        """Returns all living processes that descend from any start of the run."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and self.marker in process.environ():
                    found.append(process.pid)
        return found

    def journal_size(self) -> int:
        """Returns the bytes of all finished batches."""
        return sum(path.stat().st_size for path in (self.output / "journal").glob("*.batches"))

    def results(self) -> dict[str, Any]:
        """Returns the content of `results.json`."""
        return json.loads((self.output / "results.json").read_text(encoding="utf-8"))

    def last_message(self) -> str:
        """Returns the final message of the latest start."""
        lines = self.last_words().splitlines()
        return next((line for line in lines if line.startswith("dist_eval: ")), "nothing")[:300]

    def last_words(self) -> str:
        """Returns the end of the latest start's output."""
        return (self._scratch_dir / f"start-{self.starts}.log").read_text(errors="replace")[-_LAST_CHARACTERS:]

    def predictions(self) -> bytes:
        """Returns the file with the predictions."""
        return (self.output / "predictions.parquet").read_bytes()


class Chaos:
    """The events that disturb a run and its swarm.

    Args:
        run: the run.
        swarm: the swarm.
        generator: source of all randomness.
    """

    def __init__(self, run: Run, swarm: PrivateSwarm, generator: random.Random) -> None:
        self._run, self._swarm, self._random = run, swarm, generator
        self._frozen: tuple[int, float] | None = None
        self.events: dict[str, Callable[[], bool]] = {
            "agent killed": self._kill_agent,
            "rank killed": self._kill_rank,
            "server killed": self._kill_server,
            "server frozen": self._freeze_server,
            "stopped by SIGTERM": self._terminate,
            "stopped by a file": self._create_stop_file,
        }

    def thaw(self, *, at_once: bool = False) -> None:
        """Resumes a frozen server, if it has been frozen for long enough."""
        if self._frozen and (at_once or time.monotonic() > self._frozen[1]):
            with suppress(ProcessLookupError):
                os.killpg(self._frozen[0], signal.SIGCONT)
            self._frozen = None

    def _kill_rank(self) -> bool:
        for number in self._random.sample(_WORLD_SIZES, len(_WORLD_SIZES)):
            rank = self._run.rank(number - 1)
            if rank:
                rank.kill()
                return True
        return False

    def _kill_agent(self) -> bool:
        assert self._run.agent is not None
        self._run.agent.kill()
        return True

    def _terminate(self) -> bool:
        assert self._run.agent is not None
        self._run.agent.terminate()
        return True

    def _create_stop_file(self) -> bool:
        (self._run.output / "STOP").touch()
        return True

    def _kill_server(self) -> bool:
        self.thaw(at_once=True)
        number = self._random.randrange(len(self._swarm.spans))
        self._swarm.kill_server(number)
        restart(self._swarm, number)
        return True

    def _freeze_server(self) -> bool:
        self.thaw(at_once=True)
        group = self._random.choice(self._swarm.servers).pid
        os.killpg(group, signal.SIGSTOP)
        self._frozen = group, time.monotonic() + _FREEZE_SECONDS
        return True


def measure(options: argparse.Namespace, scratch_dir: Path) -> None:
    """Disturbs runs, then measures how soon a run resumes."""
    report = Report("chaos", QUESTION, unit="s", options=options, more_is_better=False)
    long = write_rows(scratch_dir / "long.csv", _REPEATED)
    dataset = write_rows(scratch_dir / "rows.csv", options.repeated)
    with replicated_swarm(scratch_dir, _PARTS if options.chains else _WHOLE) as swarm:

        def make_run(name: str, rows: Path, peers: list[str]) -> Run:
            return Run(rows, scratch_dir / name, scratch_dir, peers, sessions=options.sessions)

        # without sessions, a swarm gives the same bits as the local model
        undisturbed = make_run("undisturbed", dataset, swarm.initial_peers if options.sessions else [])
        at_first = free_cache(swarm) if options.sessions else []
        undisturbed.start(2)
        if undisturbed.wait():
            raise BenchmarkError(f"the undisturbed run failed: {undisturbed.last_message()}")
        for number in range(options.rounds):
            run = make_run(f"disturbed-{number}", dataset, swarm.initial_peers)
            generator = random.Random(options.seed + number)
            tally = disturb(run, swarm, generator, options.events, undisturbed.journal_size())
            report.note(check_run(run, undisturbed, tally))
            if options.sessions:
                report.note(check_caches(run, swarm, at_first))
        for number in range(0 if options.chains else options.rounds):
            with_replica, without = watch(make_run(f"watched-{number}", long, swarm.initial_peers), swarm)
            report.add(SOONEST, KILLED, with_replica)
            report.add(SOONEST, RETURNED, without)
    for name in () if options.chains else (KILLED, RETURNED):
        report.bound(name, report.series[SOONEST, name].values, _BAR_SECONDS)
    report.finish()
    if "LOST" in "".join(report.notes):
        raise BenchmarkError("something was lost")


def write_rows(path: Path, times: int) -> Path:
    """Writes the embedded test data, repeated a number of times."""
    header, *rows = demo.TEST_DATA.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([header, *rows * times]) + "\n", encoding="utf-8")
    return path


@contextmanager
def replicated_swarm(scratch_dir: Path, spans: Sequence[tuple[int, int]] = _WHOLE) -> Iterator[PrivateSwarm]:
    """Opens a swarm for the embedded example, by default of servers that each hold all blocks."""
    from dist_eval.petals.client.hivemind_compat import prepare_hivemind

    prepare_hivemind(sockets=scratch_dir)
    with PrivateSwarm(str(demo.BASE_MODEL), num_blocks=_BLOCKS, dht_prefix=_PREFIX, spans=spans, threads=1) as swarm:
        for number in range(len(spans)):
            wait_until_up(swarm, number)
        yield swarm


def disturb(run: Run, swarm: PrivateSwarm, generator: random.Random, count: int, whole: int) -> Counter[str]:
    """Disturbs a run until a number of events have occurred and it is complete.

    Args:
        run: the run.
        swarm: its swarm.
        generator: source of all randomness.
        count: number of events.
        whole: bytes of a complete journal.

    Returns:
        How often each event happened.
    """
    chaos, tally = Chaos(run, swarm, generator), Counter[str]()
    names = [name for _ in range(count) for name in chaos.events][:count]
    generator.shuffle(names)
    others: list[str] = []
    world_size = generator.choice(_WORLD_SIZES)
    run.start(world_size)
    try:
        while True:
            assert run.agent is not None
            goal = run.journal_size() + _STEP * whole
            while run.agent.poll() is None and not (names and run.journal_size() >= goal):
                chaos.thaw()
                time.sleep(0.02)
            if run.agent.poll() is None and names:
                name, share = names[-1], run.journal_size() / whole
                if chaos.events[name]():
                    names.pop()
                    tally[name] += 1
                    print(f"  {100 * share:3.0f} % on {world_size} ranks: {name}", flush=True)
                if "server" not in name:
                    run.wait()
            if run.agent.poll() is not None:
                status = run.wait()
                if status == 0 and run.results()["status"] == "complete":
                    if names:
                        raise BenchmarkError(f"the run ended before {', '.join(names)}: set fewer --events")
                    break
                if run.results()["status"] == "failed":
                    others.append(run.last_message())
                world_size = generator.choice([size for size in _WORLD_SIZES if size != world_size])
                tally["restarts on another number of ranks"] += 1
                run.start(world_size)
    finally:
        chaos.thaw(at_once=True)
        run.kill()
    for words in others[:_OTHER_ERRORS_SHOWN]:
        print(f"  a start ended with: {words}", flush=True)
    return tally


def check_run(run: Run, undisturbed: Run, tally: Counter[str]) -> str:
    """Compares a disturbed run with the undisturbed one, and returns the tally as a sentence."""
    results = run.results()
    coverage, events = results["coverage"], {name: n for name, n in tally.items() if "restart" not in name}
    is_equal = run.predictions() == undisturbed.predictions()
    sections = ("metrics", "per_class", "confusion_matrix", "coverage")
    is_equal &= all(results[name] == undisturbed.results()[name] for name in sections)
    verdict = "equal to the undisturbed run's to the last byte" if is_equal else "LOST: other results than undisturbed"
    return (
        f"{sum(events.values())} events ({', '.join(f'{n} x {name}' for name, n in sorted(events.items()))}), "
        f"{tally['restarts on another number of ranks']} restarts on another number of ranks, "
        f"{results['plan']['batches']} batches: {coverage['missing']} of {coverage['expected']} examples lost, "
        f"{coverage['duplicates']} counted twice, {run.orphans} processes left behind; results {verdict}."
        + (" LOST: processes" if run.orphans else "")
    )


def check_caches(run: Run, swarm: PrivateSwarm, at_first: list[int]) -> str:
    """Describes a disturbed run's use of sessions, and whether servers released all memory."""
    left, deadline = free_cache(swarm), time.monotonic() + _ORPHANS_SECONDS
    while left != at_first and time.monotonic() < deadline:
        left = free_cache(swarm)
    sessions = run.results()["sessions"]
    return (
        f"{sessions['batches']} batches for sessions, {sessions['fell_back']} of them in plain forwards; memory of "
        f"servers for attention caches: {left} of {at_first} tokens times blocks are free."
        + (" LOST: memory" if left != at_first else "")
    )


def free_cache(swarm: PrivateSwarm) -> list[int]:
    """Returns the free attention cache of servers, in tokens times blocks."""
    from dist_eval.model.swarm_backbone import load_swarm_backbone
    from dist_eval.petals.client.client import join_swarm
    from dist_eval.petals.client.coverage import wait_until_covered

    for number in range(len(swarm.spans)):
        wait_until_up(swarm, number)
    dht = join_swarm(swarm.initial_peers, _TIMEOUT)
    wait_until_covered(dht, _PREFIX, _BLOCKS, _TIMEOUT, servers=len(swarm.spans))
    backbone = load_swarm_backbone(swarm.model, dht, dht_prefix=_PREFIX, request_timeout=_TIMEOUT, max_retries=4)
    try:
        return sorted(backbone.requests.servers.free_cache().values())
    finally:
        backbone.close()


def watch(run: Run, swarm: PrivateSwarm) -> tuple[float, float]:
    """Measures how long a run makes no progress after servers were killed.

    Returns:
        Seconds after one of two replicas was killed, and seconds after the only server was ready again.
    """
    for number in range(_REPLICAS):
        wait_until_up(swarm, number)
    agent = run.start(1)
    wait_for(lambda: run.journal_size() > 0, "the run to begin")
    swarm.kill_server(1)
    longest = _longest_pause(run, _WATCH_SECONDS)
    swarm.kill_server(0)
    time.sleep(_OUTAGE_SECONDS)
    size = run.journal_size()
    restart(swarm, 0)
    wait_until_up(swarm, 0)
    ready = time.monotonic()
    wait_for(lambda: run.journal_size() > size or agent.poll() is not None, "the run to resume")
    if run.journal_size() == size:
        raise BenchmarkError(f"the run ended too soon: {run.last_message()}")
    seconds = time.monotonic() - ready
    agent.kill()
    run.wait()
    restart(swarm, 1)
    return longest, seconds


def restart(swarm: PrivateSwarm, number: int) -> None:
    """Restarts a killed server."""
    (swarm.folder / f"server-{number}.log").write_bytes(b"")  # see `wait_until_up`
    swarm.start_server(number)


def wait_until_up(swarm: PrivateSwarm, number: int) -> None:
    """Waits until a server's latest process is ready; restarts one that has ended.

    A Petals server ends if the peer that it joins does not answer its ping in time, as on a busy host.

    Raises:
        BenchmarkError: it does not become ready, or ends each time; the message has the end of its log.
    """
    log, restarts = swarm.folder / f"server-{number}.log", itertools.count(1)

    def is_ready() -> bool:
        if swarm.servers[number].poll() is not None:
            if next(restarts) > _MOST_RESTARTS:
                raise BenchmarkError(f"server {number} has ended")
            restart(swarm, number)
        return "[INFO] Started" in log.read_text(errors="replace")

    try:
        wait_for(is_ready, f"server {number}")
    except BenchmarkError as error:
        raise BenchmarkError(f"{error}. The end of its log:\n{log.read_text()[-_LAST_CHARACTERS:]}") from error


def _longest_pause(run: Run, seconds: float) -> float:
    """Returns the longest time in which no batch was finished."""
    begin = last = time.monotonic()
    size, longest = run.journal_size(), 0.0
    while time.monotonic() < begin + seconds:
        now, size_now = time.monotonic(), run.journal_size()
        longest = max(longest, now - last)
        if size_now > size:
            last, size = now, size_now
        time.sleep(0.02)
    return longest


def wait_for(condition: Callable[[], Any], what: str) -> None:
    """Polls a condition.

    Raises:
        BenchmarkError: the condition was not met before the timeout.
    """
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"timed out after {_TIMEOUT:g} s waiting for {what}")
        time.sleep(0.05)


PROGRAM = Program("chaos", QUESTION, measure, rounds=1, quick={"events": 4, "repeated": 3})
PROGRAM.add("--events", 24, "minimum number of events")
PROGRAM.add("--repeated", _REPEATED, "repetitions of the rows of the embedded example")
PROGRAM.add("--seed", 0, "seed of the schedule")
PROGRAM.parser.add_argument("--sessions", action="store_true", help="texts have a common prefix")
PROGRAM.parser.add_argument("--chains", action="store_true", help="servers have a part of the blocks each")

if __name__ == "__main__":
    PROGRAM.main()
