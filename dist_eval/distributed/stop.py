"""Stopping in good order: no new batches, those under way are finished, what is done is in the journal.

A run is asked to stop by a signal to any of its ranks (SIGTERM, SIGINT, SIGUSR1), or by a file named STOP in its
folder. The rank that notices tells the others.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

STOP_FILE = "STOP"
_FILE_REASON = "there is a file"
"""How the reason begins where a person asked, not whatever ends processes."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SAME_REQUEST_SECONDS = 2.0
"""A terminal's Ctrl-C reaches a rank twice, the second time from torchrun."""


def asked_by_a_person(reason: str) -> bool:
    """Returns whether a reason to stop, or a message that tells it, is a person's: then nothing goes on by itself."""
    return _FILE_REASON in reason


def common_reason(reasons: Sequence[str]) -> str:
    """Finds the one reason that all ranks name, from what each of them knows; empty if none is to stop.

    Args:
        reasons: `Stop.reason` of each rank.

    Returns:
        A person's if there is one, else that of the first rank that has one.
    """
    known = [reason.replace("this rank", f"rank {rank}") for rank, reason in enumerate(reasons) if reason]
    return max(known, key=asked_by_a_person, default="")


class Stop:
    """Whether this run is to stop, and why.

    Attributes:
        reason: why, once it is to stop; until then empty.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._in_order = False
        self._signalled = float("-inf")

    @property
    def requested(self) -> bool:
        """Whether the run is to stop."""
        return bool(self.reason)

    def request(self, reason: str) -> None:
        """Asks the run to stop; the first reason counts."""
        self.reason = self.reason or reason

    def look_for_file(self, folder: Path) -> None:
        """Asks the run to stop if its folder holds a file named STOP."""
        if not self.requested and (folder / STOP_FILE).exists():
            self.request(f"{_FILE_REASON} {folder / STOP_FILE}")

    def handle_signals(self) -> None:
        """Takes over the signals by which a run is asked to stop; from the main thread."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def ignore_signals(self) -> None:
        """Ignores them from now on."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def defer_signals(self) -> None:
        """From now on a first signal is a request. Before, and for a second one, it interrupts the process at once."""
        self._in_order = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now, name = time.monotonic(), signal.Signals(number).name
        if now - self._signalled < _SAME_REQUEST_SECONDS:
            return
        again, self._signalled = self._signalled > float("-inf"), now
        if self._in_order and not again:
            self.request(f"this rank got {name}")
            return
        self.ignore_signals()
        raise KeyboardInterrupt
