"""Seconds and memory of the steps of a process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

MEBIBYTE = 1 << 20
_SAMPLING_SECONDS = 0.002


class Meter:
    """Measures the steps of this process.

    Attributes:
        steps: `seconds` and `peak` (resident memory in bytes, including mapped files) of each step, by name.
    """

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, float]] = {}
        self._peak = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measures the body of the context."""
        self._peak = self.peak()
        _forget_peak()
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds, peak = time.perf_counter() - start, memory("VmHWM")
            self._peak = max(self._peak, peak)  # the kernel updates its counters lazily: a later value may be smaller
            self.steps[name] = {"seconds": seconds, "peak": peak}

    @contextmanager
    def calls(self, name: str) -> Iterator[None]:
        """Sums the time of repeated calls within another step."""
        start = time.perf_counter()
        try:
            yield
        finally:
            known = self.steps.get(name, {"seconds": 0.0, "peak": memory("VmRSS")})
            self.steps[name] = {**known, "seconds": known["seconds"] + time.perf_counter() - start}

    def peak(self) -> int:
        """Returns the peak resident memory in bytes since the process started, also between steps."""
        return max(self._peak, memory("VmHWM"))

    def results(self) -> dict[str, Any]:
        """Returns the steps, and the peak of all."""
        return {"peak": self.peak(), "steps": self.steps}


def memory(field: str, file: str = "status", process: int | str = "self") -> int:
    """Returns a field of a file of `/proc/PROCESS` that is in kB, in bytes."""
    for line in Path("/proc", str(process), file).read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


@contextmanager
def sampled(measure: Callable[[], float], seconds: float) -> Iterator[list[float]]:
    """Yields a list to which what a function returns is added, now and then again after a time each."""
    samples, over = [measure()], threading.Event()

    def watch() -> None:
        while not over.wait(seconds):
            samples.append(measure())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield samples
    finally:
        over.set()
        watcher.join()


def growth_of_private_memory() -> AbstractContextManager[list[float]]:
    """Samples what the memory of this process alone has grown by, in bytes, files left out."""
    before = memory("RssAnon")
    return sampled(lambda: memory("RssAnon") - before, _SAMPLING_SECONDS)


def _forget_peak() -> None:
    """Resets the kernel's peak memory counter, if permitted; else it remains the peak since the start."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
