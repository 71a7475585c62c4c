"""Graceful stop: no new batches are sent, those in flight are drained, and finished ones are in the journal.

A signal to any rank (SIGTERM, SIGINT, SIGHUP, SIGUSR1) or a file named STOP in the run's folder requests a stop. The
rank that notices the request passes it on to the others.
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
# Start of the reason if a person requested the stop, not a scheduler or another program
_FILE_REASON = "there is a file"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_SAME_REQUEST_SECONDS = 2.0  # Ctrl-C in a terminal reaches a rank twice, the second time from torchrun


def leave_stop_file(folder: Path) -> None:
    """Creates the stop file in a run's folder; an existing file of that name also stops the run, and stays unchanged.

    Raises OSError if the folder cannot be written.
    """
    with suppress(FileExistsError):
        os.close(os.open(folder / STOP_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE))


def asked_by_a_person(reason: str) -> bool:
    """Returns whether a reason, or a message with it, means that a person stopped the run: it must not restart."""
    return _FILE_REASON in reason


def common_reason(reasons: Sequence[str]) -> str:
    """Returns one `Stop.reason` for all ranks: a person's if there is one, else the first; empty if none has one."""
    known = [reason.replace("this rank", f"rank {rank}") for rank, reason in enumerate(reasons) if reason]
    return max(known, key=asked_by_a_person, default="")


class Stop:
    """A request to stop this run, and its reason."""

    def __init__(self) -> None:
        self.reason = ""  # empty until a stop is requested
        self._deferred = False
        self._signalled = float("-inf")

    @property
    def requested(self) -> bool:
        return bool(self.reason)

    def request(self, reason: str) -> None:
        """Requests a stop; the first reason counts."""
        self.reason = self.reason or reason

    def look_for_file(self, folder: Path) -> None:
        """Requests a stop if the run's folder has a file named STOP."""
        if not self.requested and os.path.lexists(folder / STOP_FILE):
            self.request(f"{_FILE_REASON} {folder / STOP_FILE}")

    def handle_signals(self) -> None:
        """Installs handlers for the stop signals; call it from the main thread."""
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores it
                signal.signal(number, self._handle)

    def ignore_signals(self) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def defer_signals(self) -> None:
        """From now on, the first signal requests a stop and the second interrupts the process."""
        self._deferred = True

    def interrupt_again(self) -> None:
        """From now on, a signal interrupts the process, because the current work cannot be finished in part.

        Raises KeyboardInterrupt if a stop was requested in the meantime.
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
