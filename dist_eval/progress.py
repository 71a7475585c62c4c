"""How far all ranks are: one display for all of them, and the wait for the slowest before they combine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from dist_eval.collectives import Board, Launch
from dist_eval.errors import RunError

_REPORT_SECONDS, _WAIT_SECONDS = 0.5, 0.1
_PLAIN_LINE_SECONDS = 10.0
_LATE_RANKS_NAMED = 5
_DONE, _HOST, _FINISHED = "examples_done", "host", "finished"


class Progress:
    """Counts this rank's finished examples and knows everybody's.

    Args:
        launch: where this process stands.
        board: the ranks' store.
        total: examples of the whole run.
        stream: where the leader shows the progress; by default stderr.
    """

    def __init__(self, launch: Launch, board: Board, total: int, stream: TextIO | None = None) -> None:
        self._launch, self._board, self._total = launch, board, total
        self._stream = stream or sys.stderr
        self._done = self._reported = 0
        self._lock, self._ended, self._complete = threading.Lock(), threading.Event(), False

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

    def wait_for_all(self, patience: float) -> None:
        """Waits until all ranks have finished their shards, however long that takes, as long as they get on.

        Collectives have a fixed time limit, which would either be too short for a slow rank or hide a dead one.

        Args:
            patience: seconds without a finished example on any other rank after which the late ones are given up.

        Raises:
            RunError: the remaining ranks made no progress; the message names them and their hosts.
        """
        with self._board.connect() as store:
            self._open_counts(store)
            self._report(store)
            store.set(f"{_FINISHED}/{self._launch.rank}", "")
            store.add(_FINISHED, 1)
            counts, since = self._counts(store), time.monotonic()
            while store.add(_FINISHED, 0) < self._launch.world_size:
                self._board.require_no_failure(store)
                time.sleep(_WAIT_SECONDS)
                now = self._counts(store)
                if now != counts:
                    counts, since = now, time.monotonic()
                elif time.monotonic() - since > patience:
                    raise RunError(self._complaint(store, counts, patience))

    def _complaint(self, store: Any, counts: list[int], patience: float) -> str:
        late = [rank for rank in range(self._launch.world_size) if not store.check([f"{_FINISHED}/{rank}"])]
        hosts = {r: store.get(f"{_HOST}/{r}").decode() for r in late if store.check([f"{_HOST}/{r}"])}
        named = ", ".join(
            f"rank {rank} on {hosts.get(rank, 'an unknown host')} ({counts[rank]} examples done)"
            for rank in late[:_LATE_RANKS_NAMED]
        )
        more = f" and {len(late) - _LATE_RANKS_NAMED} more" if len(late) > _LATE_RANKS_NAMED else ""
        return (
            f"Rank {self._launch.rank} is done, but for {patience:g} s there was no progress on {named}{more}. "
            "A longer patience is set with --collective-timeout."
        )

    def _open_counts(self, store: Any) -> None:
        for rank in range(self._launch.world_size):
            store.add(f"{_DONE}/{rank}", 0)  # reading all at once needs all to exist

    def _counts(self, store: Any) -> list[int]:
        return [int(n) for n in store.multi_get([f"{_DONE}/{rank}" for rank in range(self._launch.world_size)])]

    def _report(self, store: Any) -> None:
        with self._lock:  # the thread and the waiting rank both report
            delta = self._done - self._reported
            store.add(f"{_DONE}/{self._launch.rank}", delta)
            self._reported += delta

    def _run(self) -> None:
        display = _display(self._total, self._stream) if self._launch.is_leader else None
        while not self._ended.is_set():
            try:
                self._keep_reporting(display)
            except Exception:  # others judge by our reports whether we get on: try again
                self._ended.wait(_REPORT_SECONDS)
        if display:
            display.close()

    def _keep_reporting(self, display: _Bar | _Lines | None) -> None:
        with self._board.connect() as store:
            store.set(f"{_HOST}/{self._launch.rank}", self._launch.host)
            self._open_counts(store)
            while True:
                last = self._ended.wait(_REPORT_SECONDS)
                self._report(store)
                if display:
                    display.show(self._total if self._complete else sum(self._counts(store)))
                if last:
                    return


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
