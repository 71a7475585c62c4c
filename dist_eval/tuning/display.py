"""A tuning's progress on the terminal: updates, loss, and notices about waiting."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

_NOTICE_SECONDS = 0.5
_PLAIN_LINE_SECONDS = 10.0


class Display:
    """Shows the progress of a tuning."""

    def __init__(self, total: int, done: int) -> None:
        self._bar = tqdm(
            total=total,
            initial=done,
            unit=" updates",
            desc="tuning",
            file=sys.stderr,
            dynamic_ncols=True,
            mininterval=0.1 if sys.stderr.isatty() else _PLAIN_LINE_SECONDS,
        )

    def updated(self, epoch: int, loss: float) -> None:
        """Counts an update of an epoch (numbered from 0), with its mean loss in nats."""
        self._bar.set_postfix_str(f"epoch {epoch + 1}, loss {loss:.4f}", refresh=False)
        self._bar.update()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._bar.write(text, file=sys.stderr)

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
            self._bar.close()
