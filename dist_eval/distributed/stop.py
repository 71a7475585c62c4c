"""Stopping gracefully: no new batches are sent, those in flight are drained, and finished ones are in the journal.

A run is asked to stop by a signal to any of its ranks (SIGTERM, SIGINT, SIGUSR1), or by a file named STOP in its
folder. The rank that notices it passes the request on to the others.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dist_eval.process.files import PRIVATE

STOP_FILE = "STOP"
# How the reason begins if a person asked, not a scheduler or another program that sends signals
_FILE_REASON = "there is a file"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_SAME_REQUEST_SECONDS = 2.0  # A terminal's Ctrl-C reaches a rank twice, the second time from torchrun


def leave_stop_file(folder: Path) -> None:
    """Asks the run in a folder to stop; whatever already has the file's name asks it, too, and is left as it is.

    Raises:
        OSError: the folder cannot be written.
    """
    with suppress(FileExistsError):
        os.close(os.open(folder / STOP_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))


def asked_by_a_person(reason: str) -> bool:
    """Returns whether a person asked, by a reason to stop or a message with it: then nothing restarts by itself."""
    return _FILE_REASON in reason


def common_reason(reasons: Sequence[str]) -> str:
    """Chooses one reason for all ranks; empty if none was asked to stop.

    Args:
        reasons: `Stop.reason` of each rank.

    Returns:
        A person's reason if there is one, else that of the first rank that has one.
    """
    known = [reason.replace("this rank", f"rank {rank}") for rank, reason in enumerate(reasons) if reason]
    return max(known, key=asked_by_a_person, default="")


class Stop:
    """Whether this run was asked to stop, and why."""

    def __init__(self) -> None:
        self.reason = ""  # why it was asked to stop; empty until then
        self._deferred = False
        self._signalled = float("-inf")

    @property
    def requested(self) -> bool:
        return bool(self.reason)

    def request(self, reason: str) -> None:
        """Asks the run to stop; the first reason counts."""
        self.reason = self.reason or reason

    def look_for_file(self, folder: Path) -> None:
        """Asks the run to stop if its folder holds a file named STOP."""
        if not self.requested and os.path.lexists(folder / STOP_FILE):
            self.request(f"{_FILE_REASON} {folder / STOP_FILE}")

    def handle_signals(self) -> None:
        """Installs handlers for the signals by which a run is asked to stop; call it from the main thread."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def ignore_signals(self) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def defer_signals(self) -> None:
        """From now on, the first signal is a request; before that, and the second time, it interrupts the process."""
        self._deferred = True

    def interrupt_again(self) -> None:
        """From now on, a signal interrupts the process: what is under way cannot be finished in part.

        Raises:
            KeyboardInterrupt: the run was asked to stop in the meantime.
        """
        self._deferred = False
        if self.requested:
            self.ignore_signals()
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now, name = time.monotonic(), signal.Signals(number).name
        if now - self._signalled < _SAME_REQUEST_SECONDS:
            return
        again, self._signalled = self._signalled > float("-inf"), now
        if self._deferred and not again:
            self.request(f"this rank got {name}")
            return
        self.ignore_signals()
        raise KeyboardInterrupt(name)
