"""A rank's work: the batches that nobody has finished yet, through the classifier into the journal.

What is combined in the end is what stands in the journals, whichever start of the run wrote it.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np

from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import Plan, shard_batches
from dist_eval.data.problems import problem_of
from dist_eval.distributed.collectives import all_gather, least_over_ranks
from dist_eval.distributed.progress import Progress
from dist_eval.distributed.rank_store import Topology
from dist_eval.distributed.stop import Stop, common_reason
from dist_eval.distributed.timeline import Timeline
from dist_eval.errors import RunError, RunStopped
from dist_eval.inference.forward import TextClassifier, predict_batches
from dist_eval.inference.window import Window
from dist_eval.metrics.predictions import Collector, Coverage, Predictions
from dist_eval.runs.journal import Journal
from dist_eval.swarm.findings import Findings


@dataclass(frozen=True)
class Assignment:
    """Batches of one rank.

    Attributes:
        resumed: finished by an earlier start; this rank brings them to the combination. int64 of shape [n].
        shard: to be done now, int64 of shape [m].
    """

    resumed: np.ndarray
    shard: np.ndarray


@dataclass(frozen=True)
class FailurePolicy:
    """What becomes of examples that get no prediction.

    Attributes:
        skip: they are counted and left out; otherwise the first one ends the run.
        limit: most of them on all ranks together.
    """

    skip: bool = False
    limit: int = 0

    def require_few(self, count: int, examples: int, reason: str) -> None:
        """Raises a `RunError` if more examples failed than may, or all of the dataset's; it has the reason of one."""
        if count > self.limit:
            raise RunError(
                f"{count} examples failed, more than --max-failed {self.limit} allows. One of them: {reason}"
            )
        if count >= examples:
            raise RunError(f"All {examples} examples failed. One of them: {reason}")


def share_out(found: np.ndarray, plan: Plan, topology: Topology) -> tuple[Assignment, int]:
    """Divides the batches that are finished, and those that are not, among the ranks; every rank calls it.

    Hosts may have folders of their own, or share one: a batch that several ranks know of is brought by the first.

    Args:
        found: which batches this rank's journal has finished, bool of shape [batches].
        plan: all batches.
        topology: where this process stands. The process group is open.

    Returns:
        This rank's share, and how many examples earlier starts have finished altogether.
    """
    owner = least_over_ranks(np.where(found, topology.rank, topology.world_size))
    done = owner < topology.world_size
    left = np.flatnonzero(~done)
    share = Assignment(
        resumed=np.flatnonzero(owner == topology.rank),
        shard=left[shard_batches(len(left), rank=topology.rank, world_size=topology.world_size)],
    )
    return share, int(plan.sizes[done].sum())


def require_complete(left: int, finished: int, failed: int, before: int, stop: Stop, examples: int) -> None:
    """Makes sure that no rank has stopped before its end; every rank calls it.

    Args:
        left: batches that this rank has not done.
        finished: examples that it has done in this start.
        failed: examples that it has given up.
        before: examples that earlier starts have done.
        stop: why it has stopped.
        examples: of the dataset.

    Raises:
        RunStopped: some rank has; on all ranks.
    """
    everybody = all_gather((left, finished, failed, stop.reason))
    if any(left for left, *_ in everybody):
        seen = before + sum(finished for _, finished, *_ in everybody)
        given_up = sum(failed for *_, failed, _ in everybody)
        why = common_reason([reason for *_, reason in everybody])
        raise RunStopped(
            f"Stopped, because {why}: {seen} of {examples} examples are in the journal. Start the same command "
            "again to go on.",
            Coverage(examples, seen, duplicates=0, missing=examples - seen, failed=given_up),
        )


class BatchWorker:
    """This rank's work, and what it did.

    Args:
        classifier: the model.
        data: the tokenized examples, the same on all ranks.
        plan: all batches, the same on all ranks.
        journal: where finished batches go.
        progress: told of each batch that is done.
        window: how many batches of this rank may be under way at a time.
        stop: asked whether to go on.
        drain_timeout: seconds for batches under way once the run is to stop.
        failures: what becomes of examples that get no prediction.
        audited: numbers of the batches that need a second opinion.

    Attributes:
        timeline: this rank's batches over time, and their examples.
    """

    def __init__(
        self,
        classifier: TextClassifier,
        data: TokenizedDataset,
        plan: Plan,
        journal: Journal,
        progress: Progress,
        window: Window,
        stop: Stop,
        *,
        drain_timeout: float,
        failures: FailurePolicy,
        audited: Container[int] = (),
    ) -> None:
        self._classifier, self._data, self._plan, self._journal = classifier, data, plan, journal
        self._progress, self._window, self._stop = progress, window, stop
        self._drain_timeout, self._failures, self._audited = drain_timeout, failures, audited
        self._done: list[int] = []
        self._resumed = 0
        self._failed = 0
        self._seconds, self._began = 0.0, datetime.now(timezone.utc)
        self.timeline = Timeline()

    def run(self, topology: Topology, stall_timeout: float) -> np.ndarray:
        """Does what nobody has finished yet; every rank calls it.

        If an audit has found a server odd by then, what that server had a hand in counts as never done, and the ranks
        share it out once more.

        Args:
            topology: where this process stands.
            stall_timeout: seconds without a finished example on any other rank after which the late ones are given up.

        Returns:
            The batches that this rank brings to the combination.

        Raises:
            RunStopped: the run was asked to stop before its end; on all ranks.
            EvaluationError: see `do` and `Progress.wait_for_all`.
        """
        faulty, assigned_batches = None, np.empty(0, dtype=np.int64)
        while True:
            faulty_before, faulty = faulty, frozenset[str]().union(*all_gather(self._journal.faulty_servers()))
            if faulty == faulty_before:
                return assigned_batches
            self._classifier.exclude(faulty)
            for server in faulty:  # hosts may have folders of their own
                self._journal.exclude(server)
            found = np.zeros(len(self._plan), dtype=bool)
            if topology.is_host_leader:
                found = self._journal.read(self._audited)
            counted = self._progress.counted()
            share, done = share_out(found, self._plan, topology)
            assigned_batches = np.concatenate([share.resumed, share.shard])
            if faulty_before is None:
                self._resumed = int(self._plan.sizes[share.resumed].sum())
            self._progress.begin(done, counted)
            count, self._failed = len(self._done), 0
            left = self.do(share.shard)
            self._progress.wait_for_all(stall_timeout)
            tried = int(self._plan.sizes[self._done[count:]].sum())
            require_complete(left, tried - self._failed, self._failed, done, self._stop, len(self._data))

    def do(self, shard: Sequence[int] | np.ndarray) -> int:
        """Sends batches through the classifier and writes each to the journal as soon as it is back.

        Args:
            shard: their numbers.

        Returns:
            How many were not done, because the run is to stop.

        Raises:
            RunError: too many examples failed, or the journal cannot be written.
            ModelOutputError: the model's outputs are no predictions.
            SwarmError: a batch got no answer.
        """
        start, left = time.monotonic(), len(shard)
        for outcome in predict_batches(
            self._classifier,
            self._data,
            self._plan,
            shard,
            window=self._window,
            skip_failed=self._failures.skip,
            stopping=lambda: self._stop.requested,
            drain_timeout=self._drain_timeout,
            audited=self._audited,
            timeline=self.timeline,
        ):
            self._journal.append(outcome)
            failed = len(outcome.failed)
            self._progress.add(len(outcome.logits) - failed, failed, batch=outcome.batch)
            self._failed += failed
            if failed:
                reason = next(iter(outcome.failed.values()))
                self._failures.require_few(max(self._progress.failed, self._failed), len(self._data), reason)
            self._done.append(outcome.batch)
            left -= 1
        self._seconds += time.monotonic() - start
        return left

    def to_dict(self, topology: Topology) -> dict[str, Any]:
        """Returns this rank's entry in the section `ranks` of `results.json`, as far as it is known here."""
        return {
            "rank": topology.rank,
            "host": topology.host,
            "began": self._began.isoformat(timespec="milliseconds"),
            "batches": len(self._done),
            "samples": int(self._plan.sizes[self._done].sum()),
            "resumed": self._resumed,
            "tokens": int(self._plan.real_tokens[self._done].sum()),
            "padded_tokens": int(self._plan.tokens[self._done].sum()),
            "seconds": self._seconds,
            "in_flight": self._window.size,
        }

    def collect(self, batches: np.ndarray) -> tuple[Predictions, list[tuple[int, str]], Findings]:
        """Reads batches back from the journal.

        Returns:
            The predictions, the examples that have none (position in the dataset, and why), and what audits have found.
        """
        problem = problem_of(self._data.labels.dtype)
        collector = Collector(int(self._plan.sizes[batches].sum()), self._classifier.num_labels, problem)
        failed: list[tuple[int, str]] = []
        findings = [Findings(faulty=self._journal.faulty_servers())]
        for outcome in self._journal.outcomes(batches):
            rows = self._plan.batch(outcome.batch)
            failed += [(int(rows[row]), reason) for row, reason in outcome.failed.items()]
            if outcome.audit is not None:
                findings.append(Findings.of_notes(outcome.audit))
            kept = np.setdiff1d(np.arange(len(rows)), list(outcome.failed))
            labels, logits = self._data.labels[rows[kept]], outcome.logits[kept]
            collector.add(Predictions.from_logits(rows[kept], labels, logits, problem))
        return collector.predictions(), failed, Findings.merged(findings)
