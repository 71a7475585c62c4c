"""A tuning's progress on the terminal: updates, loss, and notices about waiting."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dist_eval.distributed.display import display_on
from dist_eval.distributed.time_left import TimeLeft

_NOTICE_SECONDS = 0.5


class TuningDisplay:
    """Shows the progress of a tuning."""

    def __init__(self, total: int, done: int) -> None:
        self._display, self._time_left = display_on(sys.stderr, total, "tuning", "update"), TimeLeft()
        self._total, self._before, self._done = total, done, done
        self._time_left.update(total - done, time.monotonic())

    def updated(self, epoch: int, loss: float) -> None:
        """Counts an update of an epoch (numbered from 0), with its mean loss in nats."""
        self._done += 1
        now = time.monotonic()
        self._time_left.update(self._total - self._done, now)
        details = f"epoch {epoch + 1}, loss {loss:.4f}"
        self._display.show(self._done, self._before, self._time_left.seconds(now), details)

    def say(self, text: str) -> None:
        """Prints a line beside the progress."""
        self._display.note(text)

    @contextmanager
    def watching(self, notice: Callable[[], str]) -> Iterator[None]:
        """Shows notices from a thread for the time of the context; then closes the display."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_NOTICE_SECONDS):
                if text := notice():
                    self.say(text)

        thread = threading.Thread(target=watch, name="notices", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(2 * _NOTICE_SECONDS)
            self._display.close()
