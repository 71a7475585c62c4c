"""Predicts a rank's share of the unfinished batches, and appends them to the journal.

The results are computed from the journals alone, whichever start of the run wrote them.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np

from dist_eval.data.collector import Collector, Columns
from dist_eval.data.plan import BatchPlan
from dist_eval.distributed.collectives import all_gather, all_reduce_min
from dist_eval.distributed.progress import Progress
from dist_eval.distributed.rank_store import Topology
from dist_eval.distributed.stop import Stop, common_reason
from dist_eval.errors import RunError, RunStopped
from dist_eval.inference.forward import TextSource, predict_batches
from dist_eval.inference.in_flight import Window
from dist_eval.inference.models import AnsweringModel
from dist_eval.options.config import EvaluationConfig
from dist_eval.petals.client.findings import Findings
from dist_eval.petals.client.records import Traffic
from dist_eval.results.inputs import Coverage
from dist_eval.results.work import RankWork
from dist_eval.runs.journal import Journal
from dist_eval.tables import format_count


@dataclass(frozen=True)
class Assignment:
    """Batches of one rank."""

    resumed: np.ndarray  # finished by an earlier start, to be read from the journal; int64 of shape [n]
    shard: np.ndarray  # to be predicted now; int64 of shape [m]


@dataclass(frozen=True)
class RankOutput:
    """What this rank did, and the answers to its batches, read back from the journal."""

    columns: dict[str, np.ndarray]  # of the answered samples
    failed: list[tuple[int, str]]  # samples without an answer: number in the plan, and the reason
    findings: Findings  # of audits
    precisions: set[str]  # precisions in which servers computed the answers
    fell_back: int  # batches planned for sessions that took plain forwards
    work: RankWork


@dataclass(frozen=True)
class FailurePolicy:
    """What to do about examples without a prediction."""

    skip: bool = False  # whether to count them and leave them out; otherwise the first one ends the run
    limit: int = 0  # how many may be left out, on all ranks together

    @classmethod
    def of(cls, config: EvaluationConfig) -> FailurePolicy:
        """Returns the policy of the options."""
        return cls(config.on_error == "skip", config.max_failed)

    def require_few(self, count: int, examples: int, reason: str) -> None:
        """Raises a `RunError`, with the reason of one failure, if more examples failed than allowed, or all of them."""
        if count > self.limit:
            raise RunError(
                f"{format_count(count, 'example')} failed, more than --max-failed {self.limit} allows. One of "
                f"them: {reason}"
            )
        if count >= examples:
            raise RunError(f"All {format_count(examples, 'example')} failed. One of them: {reason}")


def assign_batches(found: np.ndarray, plan: BatchPlan, topology: Topology) -> tuple[Assignment, int, int]:
    """Assigns finished and unfinished batches to the ranks; every rank calls it, in an open process group.

    Hosts may share a folder or have their own. A finished batch that several ranks have found (`found`, bool of shape
    [batches]) is assigned to the first of them. Also returns the number of examples that earlier starts have finished,
    and the number of tokens that are left.
    """
    owner = all_reduce_min(np.where(found, topology.rank, topology.world_size))
    done = owner < topology.world_size
    left = np.flatnonzero(~done)
    share = Assignment(
        resumed=np.flatnonzero(owner == topology.rank),
        shard=plan.shard(left, rank=topology.rank, world_size=topology.world_size),
    )
    return share, int(plan.sizes[done].sum()), int(plan.tokens[left].sum())


def require_complete(left: int, finished: int, failed: int, before: int, stop: Stop, examples: int) -> None:
    """Raises `RunStopped` if a rank has stopped early; every rank calls it."""
    everybody = all_gather((left, finished, failed, stop.reason))
    if any(left for left, *_ in everybody):
        seen = before + sum(finished for _, finished, *_ in everybody)
        given_up = sum(failed for *_, failed, _ in everybody)
        why = common_reason([reason for *_, reason in everybody])
        raise RunStopped(
            f"Stopped because {why}: {seen} of {format_count(examples, 'example is', 'examples are')} in the journal. "
            "Start the same command again to resume.",
            Coverage(expected=examples, seen=seen, duplicates=0, missing=examples - seen, failed=given_up),
        )


class BatchWorker:
    """Predicts this rank's batches, and counts what it has done."""

    def __init__(
        self,
        model: AnsweringModel,
        data: TextSource,
        plan: BatchPlan,
        journal: Journal,
        progress: Progress,
        window: Window,
        stop: Stop,
        topology: Topology,
        *,
        drain_timeout: float,
        failures: FailurePolicy,
        audited: Container[int] = (),
    ) -> None:
        self._model, self._data, self._plan, self._journal = model, data, plan, journal
        self._progress, self._window, self._stop, self._topology = progress, window, stop, topology
        self._drain_timeout, self._failures, self._audited = drain_timeout, failures, audited
        self._done = array("q")
        self._resumed = 0
        self._failed = 0
        self._seconds, self._began = 0.0, datetime.now(timezone.utc)

    def run(self, stall_timeout: float) -> np.ndarray:
        """Predicts all unfinished batches; every rank calls it. Returns those assigned to it, int64 of shape [n].

        If an audit finds a server faulty, the batches that it answered are assigned and predicted again. Ranks count as
        lost if the others wait `stall_timeout` seconds for them without any example being finished.
        """
        faulty, assigned_batches = None, np.empty(0, dtype=np.int64)
        while True:
            faulty_before, faulty = faulty, frozenset[str]().union(*all_gather(self._journal.faulty_servers()))
            if faulty == faulty_before:
                return assigned_batches
            self._model.exclude(faulty)
            for server in faulty:  # hosts may have separate folders
                self._journal.exclude(server)
            found = np.zeros(len(self._plan), dtype=bool)
            if self._topology.is_host_leader:
                found = self._journal.read(self._audited)
            counted = self._progress.counted()
            share, done, tokens_left = assign_batches(found, self._plan, self._topology)
            assigned_batches = np.concatenate([share.resumed, share.shard])
            if faulty_before is None:
                self._resumed = int(self._plan.sizes[share.resumed].sum())
            self._progress.begin(done, counted, tokens_left)
            count, self._failed = len(self._done), 0
            left = self._predict(share.shard)
            self._progress.wait_for_all(stall_timeout)
            tried = int(self._plan.sizes[self._done[count:]].sum())
            require_complete(left, tried - self._failed, self._failed, done, self._stop, len(self._data))

    def _predict(self, shard: Sequence[int] | np.ndarray) -> int:
        """Predicts batches, and writes each to the journal as soon as it is answered; returns how many are left."""
        start, left = time.monotonic(), len(shard)
        for outcome in predict_batches(
            self._model,
            self._data,
            self._plan,
            shard,
            window=self._window,
            skip_failed=self._failures.skip,
            stopping=lambda: self._stop.requested,
            drain_timeout=self._drain_timeout,
            audited=self._audited,
        ):
            self._journal.append(outcome)
            failed = len(outcome.failed)
            tokens = int(self._plan.tokens[outcome.batch])
            self._progress.add(len(outcome.answers) - failed, failed, tokens=tokens, batch=outcome.batch)
            self._failed += failed
            if failed:
                reason = next(iter(outcome.failed.values()))
                self._failures.require_few(max(self._progress.failed, self._failed), len(self._data), reason)
            self._done.append(outcome.batch)
            left -= 1
        self._seconds += time.monotonic() - start
        return left

    def output(
        self, batches: np.ndarray, columns_of: Callable[[np.ndarray, np.ndarray], Columns], traffic: Traffic | None
    ) -> RankOutput:
        """Reads batches back from the journal, and adds what this rank did, `traffic` included.

        `columns_of` takes positions, int64 of shape [n], and answers.
        """
        like = columns_of(np.empty(0, dtype=np.int64), np.empty(0, dtype=self._model.columns))
        collector = Collector(int(self._plan.sizes[batches].sum()), like)
        failed: list[tuple[int, str]] = []
        precisions, fell_back = set[str](), 0
        findings = [Findings(faulty=self._journal.faulty_servers())]
        for outcome in self._journal.outcomes(batches):
            rows = self._plan.batch(outcome.batch)
            fell_back += outcome.fell_back
            failed += [(int(rows[row]), reason) for row, reason in outcome.failed.items()]
            precisions.update(segment.precision for segment in outcome.route if segment.precision)
            if outcome.audit is not None:
                findings.append(Findings.from_record(outcome.audit))
            kept = outcome.answered_rows
            collector.add(columns_of(rows[kept], outcome.answers[kept]))
        merged = Findings.merged(findings)
        return RankOutput(collector.columns(), failed, merged, precisions, fell_back, self._work(traffic))

    def _work(self, traffic: Traffic | None) -> RankWork:
        return RankWork(
            rank=self._topology.rank,
            host=self._topology.host,
            began=self._began.isoformat(timespec="milliseconds"),
            batches=len(self._done),
            samples=int(self._plan.sizes[self._done].sum()),
            resumed=self._resumed,
            tokens=int(self._plan.real_tokens[self._done].sum()),
            padded_tokens=int(self._plan.tokens[self._done].sum()),
            seconds=self._seconds,
            in_flight=self._window.size,
            traffic=traffic,
        )
