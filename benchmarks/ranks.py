"""Ranks that measure themselves: starting them, and recording seconds, bytes and memory of each."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.program import BenchmarkError
from dist_eval.process.lifetime import end_session

MEBIBYTE = 1 << 20
_LINES_SHOWN = 20
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Phase:
    """The measurements of one phase of one rank.

    Attributes:
        seconds: duration.
        sent: bytes written, which for an exchange are the bytes sent to other ranks.
        peak: peak resident memory in bytes, including memory-mapped files.
        before: resident memory in bytes at the start.
    """

    seconds: float
    sent: int
    peak: int
    before: int

    @property
    def growth(self) -> int:
        """Maximum growth of the resident memory in bytes."""
        return self.peak - self.before


class Meter:
    """Measures the phases of this process.

    Attributes:
        phases: the measurements by name of the phase.
    """

    def __init__(self) -> None:
        self.phases: dict[str, Phase] = {}
        self._peak = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures the body of the context."""
        self._peak = self.peak()
        _forget_peak()
        before, sent, start = _memory("VmRSS"), _written(), time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            peak = _memory("VmHWM")
            self._peak = max(self._peak, peak)  # the kernel updates its counters lazily: a later value may be smaller
            self.phases[name] = Phase(seconds, _written() - sent, peak, before)

    @contextmanager
    def calls(self, name: str) -> Iterator[None]:
        """Sums the time of repeated calls within another phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            known = self.phases.get(name) or Phase(0.0, 0, _memory("VmRSS"), _memory("VmRSS"))
            self.phases[name] = replace(known, seconds=known.seconds + time.perf_counter() - start)

    def peak(self) -> int:
        """Returns the peak resident memory in bytes since the process started, also between phases."""
        return max(self._peak, _memory("VmHWM"))

    def write(self, folder: Path, rank: int) -> None:
        """Writes the measurements for `read_ranks`."""
        content = {"peak": self.peak(), "phases": {name: asdict(phase) for name, phase in self.phases.items()}}
        (folder / f"rank-{rank}.json").write_text(json.dumps(content), encoding="utf-8")


@dataclass(frozen=True)
class Rank:
    """The measurements of a rank.

    Attributes:
        peak: peak resident memory in bytes.
        phases: the measurements by name of the phase.
    """

    peak: int
    phases: dict[str, Phase]


def read_ranks(folder: Path, ranks: int) -> list[Rank]:
    """Reads the measurements of all ranks, in their order."""
    contents = [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
    return [
        Rank(content["peak"], {name: Phase(**phase) for name, phase in content["phases"].items()})
        for content in contents
    ]


def run(command: Sequence[str], scratch_dir: Path, *, python: str = sys.executable, **variables: str) -> str:
    """Runs a Python program to completion.

    Args:
        command: arguments of the interpreter.
        scratch_dir: folder for temporary files.
        python: the interpreter.
        **variables: further environment variables.

    Returns:
        The program's standard output.

    Raises:
        BenchmarkError: the program failed; the message contains the end of its stderr.
    """
    process = start(command, scratch_dir, python=python, **variables)
    try:
        out, err = process.communicate()
    finally:
        end_session(process.pid)  # also after Ctrl-C; ranks die with torchrun
    if process.returncode:
        last = "\n".join(err.splitlines()[-_LINES_SHOWN:])
        raise BenchmarkError(f"{' '.join(command)} ended with status {process.returncode}. Its last lines:\n{last}")
    return out


def start(
    command: Sequence[str], scratch_dir: Path, *, python: str = sys.executable, **variables: str
) -> subprocess.Popen[str]:
    """Starts a Python program in a session of its own, as `run` does."""
    return subprocess.Popen(
        [python, *command],
        cwd=_ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch_dir), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def torchrun(ranks: int) -> list[str]:
    """Returns the arguments that start a program under torchrun."""
    return ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def _forget_peak() -> None:
    """Resets the kernel's peak memory counter, if permitted; else it remains the peak since the start."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _written() -> int:
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise KeyError("wchar")
