"""Progress of all ranks: one display for all of them, heartbeats, and the wait for the slowest rank.

Each rank has a thread that reports to the others twice a second. It also passes on stop requests, and notices about
servers that a rank waits for. If a rank stops sending heartbeats or cannot reach the store, the run stops: its host may
be lost, and a restarted run assigns the remaining batches to its ranks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TextIO

from dist_eval.distributed.display import Display, TimeLeft, display_on
from dist_eval.distributed.rank_store import RankStore, Topology
from dist_eval.distributed.stop import Stop, common_reason
from dist_eval.distributed.tracked_progress import TrackedProgress
from dist_eval.errors import LostRankError, one_line
from dist_eval.tables import format_count

_REPORT_SECONDS, _WAIT_SECONDS, _ANSWER_SECONDS = 0.5, 0.1, 60.0
_LATE_RANKS_NAMED = 5
_DONE, _FAILED, _TOKENS, _HOST, _BATCH, _BEAT = "examples_done", "failed", "tokens_done", "host", "batch", "beat"
_ROUND, _FINISHED = "round", "finished"
_STOP, _NOTICE = "stop", "notice"
# Added per rank to the intervals between reports and between reads of all counters, because one store serves all
_REPORT_SECONDS_FOR_A_RANK, _LOOK_SECONDS_FOR_A_RANK = 0.002, 0.01

# After a stop request, ranks do not wait for a rank without a heartbeat for this long
_BEATS_MISSED_SECONDS = 10.0

_BLIND_SECONDS = 5.0  # A leader that has not read heartbeats for this long cannot tell silent ranks from others

_SAME_NOTICE_SECONDS = 10.0  # Ranks that wait for the same server report it within this time

_AGAIN = "; another signal ends the run at once"
_LONGER = " To wait longer, raise --collective-timeout."
_NO_HEARTBEAT, _NO_PROGRESS = "received no heartbeat", "seen no progress"


class Progress:
    """Counts the finished examples of this rank and tracks those of all ranks.

    Args:
        total: examples of the whole run.
        stop: the stop request, shared with the other ranks in both directions.
        folder: the run's folder, which is checked for a file named STOP.
        notice: describes what this rank is waiting for; empty if nothing.
        stall_timeout: the run stops after this many seconds without a heartbeat from another rank.
        stream: stream for the leader's display; by default stderr.
        unit: what the display counts, in the singular.
        tracked: additional log of the leader.
    """

    def __init__(
        self,
        topology: Topology,
        rank_store: RankStore,
        total: int,
        *,
        stop: Stop | None = None,
        folder: Path | None = None,
        notice: Callable[[], str] = lambda: "",
        stall_timeout: float = float("inf"),
        stream: TextIO | None = None,
        unit: str = "example",
        tracked: TrackedProgress | None = None,
    ) -> None:
        self._topology, self._rank_store, self._total, self._done_before = topology, rank_store, total, 0
        self._stop, self._folder, self._notice = stop or Stop(), folder, notice
        self._stream, self._unit = stream or sys.stderr, unit
        self._stall_timeout = max(stall_timeout, 2 * _REPORT_SECONDS)
        self._tracked = tracked
        self._noticed, self._resuming_shown, self._stopping_shown = ("", float("-inf")), False, False
        self._heard: dict[int, tuple[int, float]] = {}
        self._looked = time.monotonic()
        self._gone, self._cut_off, self._leader, self._answered = False, "", "", time.monotonic()
        # examples without a prediction on all ranks, as last reported
        self.failed = self._failed_total = self._failed_before = 0
        self._done = self._reported = self._failed = self._failed_reported = self._rounds = 0
        self._tokens = self._tokens_reported = self._tokens_counted = 0
        self._tokens_in_the_end: int | None = None
        self._time_left = TimeLeft()
        self._batch = -1
        self._report_seconds = max(_REPORT_SECONDS, topology.world_size * _REPORT_SECONDS_FOR_A_RANK)
        self._look_seconds = max(_WAIT_SECONDS, topology.world_size * _LOOK_SECONDS_FOR_A_RANK)
        self._lock, self._ended, self._complete = threading.Lock(), threading.Event(), False

    def counted(self) -> int:
        """Returns the number of examples that all ranks have reported so far."""
        with self._connect() as store:
            self._open_counts(store)
            self._failed_total, self._tokens_counted = store.add(_FAILED, 0), store.add(_TOKENS, 0)
            return sum(self._counts(store, _DONE))

    def begin(self, done: int, counted: int, tokens_left: int) -> None:
        """Starts a round: `done` examples are finished, and `counted` have been reported so far.

        Unfinished batches have `tokens_left` tokens, including padding.
        """
        self._done_before, self._failed_before, self.failed = done - counted, self._failed_total, 0
        self._tokens_in_the_end = self._tokens_counted + tokens_left

    def add(self, examples: int, failed: int = 0, *, tokens: int = 0, batch: int = -1) -> None:
        """Counts examples that this rank has predicted, failed ones, and the tokens of both."""
        self._done += examples
        self._failed += failed
        self._tokens += tokens
        self._batch = batch

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Reports (and on the leader displays) progress from a thread within the context.

        Leave the context without an exception only when all ranks are done.
        """
        thread = threading.Thread(target=self._run, name="progress", daemon=True)
        thread.start()
        try:
            yield
            self._complete = True
        finally:
            self._ended.set()
            thread.join(self._report_seconds * 4)

    def wait_for_all(self, stall_timeout: float) -> None:
        """Waits until all ranks have finished their shards, as long as they make progress.

        The fixed time limit of a collective would be too short for a slow rank, or hide a dead one. Late ranks count as
        lost after `stall_timeout` seconds without a finished example on any other rank; after a stop request sooner,
        when they send no heartbeat. The LostRankError names them, their hosts and their last batches.
        """
        self._rounds += 1
        finished, enough = f"{_FINISHED}-{self._rounds}", min(stall_timeout, _BEATS_MISSED_SECONDS)
        if self._cut_off:
            raise LostRankError(self._cut_off)
        with self._connect() as store:
            self._open_counts(store)
            self._report(store)
            store.add(f"{_ROUND}/{self._topology.rank}", 1)
            store.add(finished, 1)
            counts, beats, since = self._counts(store, _DONE), self._counts(store, _BEAT), time.monotonic()
            heard, looked = dict.fromkeys(range(self._topology.world_size), since), since
            if self._gone:  # this rank has already waited
                heard.update({rank: moment for rank, (_, moment) in self._heard.items()})
            while store.add(finished, 0) < self._topology.world_size:
                self._rank_store.require_no_failure(store)
                time.sleep(min(self._rank_store.poll_seconds, self._look_seconds))
                if time.monotonic() - looked < self._look_seconds:
                    continue
                looked = now = time.monotonic()
                counts_before, beats_before = counts, beats
                counts, beats = self._counts(store, _DONE), self._counts(store, _BEAT)
                heard.update({rank: now for rank in heard if beats[rank] != beats_before[rank]})
                since = now if counts != counts_before else since
                late = [rank for rank, rounds in enumerate(self._counts(store, _ROUND)) if rounds < self._rounds]
                silent = [rank for rank in late if now - heard[rank] > enough]
                if self._stop.requested and silent:
                    known = self._gone or enough == stall_timeout
                    message = self._describe_lost(store, silent, counts, enough, _NO_HEARTBEAT)
                    raise LostRankError(message + (_LONGER if known else ""))
                if late and now - since > stall_timeout:
                    raise LostRankError(self._describe_lost(store, late, counts, stall_timeout, _NO_PROGRESS) + _LONGER)

    def _describe_lost(self, store: Any, lost: list[int], counts: list[int], seconds: float, symptom: str) -> str:
        def reported(key: str, rank: int, unknown: str) -> str:
            return store.get(f"{key}/{rank}").decode() if store.check([f"{key}/{rank}"]) else unknown

        named = ", ".join(
            f"rank {rank} on {reported(_HOST, rank, 'an unknown host')} "
            f"({format_count(counts[rank], 'example')} done, the last ones in {reported(_BATCH, rank, 'no batch')})"
            for rank in lost[:_LATE_RANKS_NAMED]
        )
        more = f" and {len(lost) - _LATE_RANKS_NAMED} more" if len(lost) > _LATE_RANKS_NAMED else ""
        return f"Rank {self._topology.rank} has {symptom} for {seconds:g} s from {named}{more}."

    def _open_counts(self, store: Any) -> None:
        # a read of all counters blocks until all exist; creating all of them on each rank would overload the store
        keys = [f"{key}/{rank}" for key in (_DONE, _BEAT, _ROUND) for rank in range(self._topology.world_size)]
        own = [f"{key}/{self._topology.rank}" for key in (_DONE, _BEAT, _ROUND)]
        for key in keys if self._topology.is_leader and not store.check(keys) else own:
            store.add(key, 0)

    def _counts(self, store: Any, key: str) -> list[int]:
        return [int(n) for n in store.multi_get([f"{key}/{rank}" for rank in range(self._topology.world_size)])]

    def _report(self, store: Any) -> None:
        with self._lock:  # the thread and the waiting rank both report
            delta, failed = self._done - self._reported, self._failed - self._failed_reported
            store.add(f"{_DONE}/{self._topology.rank}", delta)
            self._failed_total = store.add(_FAILED, failed)
            self.failed = self._failed_total - self._failed_before
            self._reported, self._failed_reported = self._reported + delta, self._failed_reported + failed
            if delta or failed:
                store.set(f"{_BATCH}/{self._topology.rank}", f"batch {self._batch}")
                tokens = self._tokens - self._tokens_reported
                store.add(_TOKENS, tokens)
                self._tokens_reported += tokens

    def _pass_on(self, store: Any) -> None:
        """Sends a heartbeat, and exchanges stop requests and notices with the other ranks."""
        store.add(f"{_BEAT}/{self._topology.rank}", 1)
        if self._folder is not None:
            self._stop.look_for_file(self._folder)
        if not self._stop.requested and (failed := self._rank_store.failed_rank(store)):
            self._stop.request(f"{failed} failed")
        if not self._stop.requested and store.check([_STOP]):
            self._stop.request(store.get(_STOP).decode())
        elif self._stop.requested and not store.check([_STOP]):
            store.set(_STOP, self._stop.reason.replace("this rank", f"rank {self._topology.rank}"))
        notice = self._notice()
        if notice:
            store.set(_NOTICE, notice)

    def _connect(self) -> AbstractContextManager[Any]:
        return self._rank_store.connect(min(self._stall_timeout, _ANSWER_SECONDS))

    def _run(self) -> None:
        display = display_on(self._stream, self._total, unit=self._unit) if self._topology.is_leader else None
        self._answered = time.monotonic()
        while not self._ended.is_set():
            try:
                self._keep_reporting(display)
            except Exception as error:  # the other ranks need these reports as a sign of life: try again
                self._stop_if_cut_off(error)
                self._ended.wait(self._report_seconds)
        if display:
            display.close()

    def _stop_if_cut_off(self, error: Exception) -> None:
        if self._cut_off or time.monotonic() - self._answered < self._stall_timeout:
            return
        leader = self._leader or os.environ.get("MASTER_ADDR", "another host")
        self._cut_off = (
            f"Rank {self._topology.rank} on {self._topology.host} has been cut off from rank 0 on {leader} "
            f"for {self._stall_timeout:g} s: {one_line(error)}{_LONGER}"
        )
        self._stop.request(f"this rank is cut off from rank 0 on {leader}")

    def _stop_if_one_is_gone(self, store: Any) -> None:
        """Stops the run if a rank has stopped sending heartbeats; called only on the leader."""
        now = time.monotonic()
        if now - self._looked > _BLIND_SECONDS:  # this rank or the store was stalled: start over
            self._heard = {}
        self._looked = now
        for rank, beats in enumerate(self._counts(store, _BEAT)):
            if beats != self._heard.get(rank, (-1, 0.0))[0]:
                self._heard[rank] = beats, now
        gone = [rank for rank, (_, moment) in self._heard.items() if now - moment > self._stall_timeout]
        if gone and not self._stop.requested:
            self._gone = True
            counts = self._counts(store, _DONE)
            self._stop.request(self._describe_lost(store, gone, counts, self._stall_timeout, _NO_HEARTBEAT))

    def _keep_reporting(self, display: Display | None) -> None:
        with self._connect() as store:
            store.set(f"{_HOST}/{self._topology.rank}", self._topology.host)
            self._open_counts(store)
            while True:
                last = self._ended.wait(self._report_seconds)
                self._report(store)
                self._pass_on(store)
                self._answered = time.monotonic()
                if not self._leader and store.check([f"{_HOST}/0"]):
                    self._leader = store.get(f"{_HOST}/0").decode()
                if display:
                    self._stop_if_one_is_gone(store)
                    done = self._done_before + sum(self._counts(store, _DONE))
                    done = self._total if self._complete else done
                    if 0 < self._done_before < self._total and not self._resuming_shown:
                        self._resuming_shown = True
                        finished = format_count(self._done_before, f"{self._unit} is", f"{self._unit}s are")
                        display.note(f"resuming: {finished} finished already")
                    display.show(done, self._done_before, self._seconds_left(store))
                    if self._tracked:
                        self._tracked.show(done, self._done_before)
                    if self._stop.requested and not self._stopping_shown:
                        self._stopping_shown = True
                        again = _AGAIN if self._stop.reason.startswith("this rank got") else ""
                        why = common_reason([self._stop.reason]).rstrip(".")
                        display.note(f"stopping because {why}: batches in flight are finished first{again}")
                    if store.check([_NOTICE]):
                        self._show_notice(display, store.get(_NOTICE).decode())
                        store.delete_key(_NOTICE)
                if last:
                    return

    def _show_notice(self, display: Display, text: str) -> None:
        """Shows a notice, once if several ranks send the same one."""
        last, shown_at = self._noticed
        if text != last or time.monotonic() - shown_at > _SAME_NOTICE_SECONDS:
            display.note(text)
            self._noticed = text, time.monotonic()

    def _seconds_left(self, store: Any) -> float | None:
        """Estimates the time for the remaining batches; called only on the leader."""
        if self._tokens_in_the_end is None:
            return None
        now = time.monotonic()
        self._time_left.update(self._tokens_in_the_end - store.add(_TOKENS, 0), now)
        return self._time_left.seconds(now)
