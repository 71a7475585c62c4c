"""One progress display for all ranks: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from dist_eval.collectives import Board, Launch

_REPORT_SECONDS = 0.5
_PLAIN_LINE_SECONDS = 10.0


class Progress:
    """Counts this rank's finished examples and lets the leader see everybody's.

    Args:
        launch: where this process stands.
        board: the ranks' store.
        total: examples of the whole run.
        stream: where the leader shows the progress.
    """

    def __init__(self, launch: Launch, board: Board, total: int, stream: TextIO | None = None) -> None:
        self._launch, self._board, self._total = launch, board, total
        self._stream = stream or sys.stderr
        self._done = self._reported = 0
        self._ended, self._complete = threading.Event(), False

    def add(self, examples: int) -> None:
        """Notes that this rank has finished some more examples."""
        self._done += examples

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Reports (and on the leader displays) progress from a thread for the time of the context.

        Leave the context without an exception only when all ranks are done.
        """
        thread = threading.Thread(target=self._run, name="progress", daemon=True)
        thread.start()
        try:
            yield
            self._complete = True
        finally:
            self._ended.set()
            thread.join(_REPORT_SECONDS * 4)

    def _run(self) -> None:
        display = _display(self._total, self._stream) if self._launch.is_leader else None
        try:
            with self._board.connect() as store:
                while True:
                    last = self._ended.wait(_REPORT_SECONDS)
                    delta, self._reported = self._done - self._reported, self._done
                    everybody = store.add("examples_done", delta)
                    if display:
                        display.show(self._total if self._complete else everybody)
                    if last:
                        break
        except Exception:  # the display is a courtesy: losing the store here shows elsewhere, if it matters
            pass
        finally:
            if display:
                display.close()


class _Bar:
    def __init__(self, total: int, stream: TextIO) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, unit=" examples", file=stream, dynamic_ncols=True, desc="evaluating")

    def show(self, done: int) -> None:
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


class _Lines:
    def __init__(self, total: int, stream: TextIO) -> None:
        self._total, self._stream = total, stream
        self._start = time.monotonic()
        self._next, self._shown = self._start + _PLAIN_LINE_SECONDS / 5, -1

    def show(self, done: int) -> None:
        now = time.monotonic()
        finished = done >= self._total
        if done == self._shown or (now < self._next and not finished):
            return
        self._next, self._shown = now + _PLAIN_LINE_SECONDS, done
        rate = done / max(now - self._start, 1e-9)
        left = "" if finished or not done else f", about {(self._total - done) / rate:.0f} s left"
        print(f"evaluating: {done} of {self._total} examples, {rate:.0f}/s{left}", file=self._stream, flush=True)

    def close(self) -> None:
        pass


def _display(total: int, stream: TextIO) -> _Bar | _Lines:
    return _Bar(total, stream) if stream.isatty() else _Lines(total, stream)
