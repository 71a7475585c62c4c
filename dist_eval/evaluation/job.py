"""Runs an evaluation: the phases that all kinds share, and the `Job` in which they differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

import numpy as np

from dist_eval.data.collector import Columns
from dist_eval.data.plan import BatchPlan
from dist_eval.distributed.collectives import require_agreement
from dist_eval.distributed.progress import Progress
from dist_eval.distributed.tracked_progress import Scored, TrackedProgress
from dist_eval.evaluation.audit import audited_batches
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.ranks import RunOutput, decide_plan
from dist_eval.evaluation.rescoring import keep_recorded_analysis
from dist_eval.evaluation.worker import BatchWorker, FailurePolicy, RankOutput
from dist_eval.inference.forward import TextSource
from dist_eval.inference.in_flight import Window
from dist_eval.inference.models import AnsweringModel
from dist_eval.model.base_model_spec import BaseModelSpec, ModelTarget
from dist_eval.options.config import RunConfig
from dist_eval.results.run import AnyCompleteRun, metrics_with_limits
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.journal import Journal

Data = TypeVar("Data", bound=TextSource)
Found = TypeVar("Found")

Context = RunContext[Any, EvaluationFolder]

Scorer = Callable[[np.ndarray, np.ndarray], Scored]
"""Called once per answered batch with the numbers of its samples in the plan, int64 of shape [n], and its answers; says
which samples are right. The numbers are rows of the dataset in a classification, positions among the requests
otherwise."""


@dataclass(frozen=True)
class Answered(Generic[Data, Found]):
    """The answers, on the leader only, and what all ranks did."""

    data: Data  # the samples
    plan: BatchPlan  # their batches
    found: Found  # their answers, as `Job.gather` returns them
    work: RunOutput[Any]  # what all ranks did


class Job(ABC, Generic[Data, Found]):
    """A kind of evaluation: what it asks which model, and how it scores the answers.

    `run` creates one on each rank. `answer` calls most methods, on all ranks unless they say otherwise.
    """

    base: BaseModelSpec  # the base model
    target: ModelTarget  # turns its outputs into answers
    audit: float = 0.0  # share of the batches that are audited
    failures: FailurePolicy = FailurePolicy()  # what to do about samples without an answer
    each_host_reads: bool = True  # whether hosts read the dataset themselves; otherwise the leader does
    stream: TextIO | None = None  # where the progress is shown; None for stderr
    unit: str = "example"  # what the progress counts, in the singular

    def __init__(self, config: RunConfig) -> None:
        """Reads the files of the model, and the options; nothing is loaded or sent."""
        self.config: Any = config

    def prepare(self) -> None:
        """Reads what the leader needs, if that is quick, so that wrong options end the run before a swarm is opened."""

    def read_rows(self) -> Iterator[int]:
        """Reads texts and labels of all rows, and yields how many have been read; an error names its row."""
        yield from ()

    @abstractmethod
    def lead(self, context: Context) -> None:
        """Evaluates on the leader: calls `answer`, writes results, and shows them."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Writes the samples to a folder, on the leaders of hosts (see `each_host_reads`)."""

    @abstractmethod
    def open(self, folder: Path) -> Data:
        """Opens the samples that `write` has written."""

    @abstractmethod
    def plan(self, data: Data, cache_tokens: int = 0) -> BatchPlan:
        """Plans the batches (see `decide_plan`)."""

    @abstractmethod
    def fingerprint(self, data: Data, plan: BatchPlan) -> Fingerprint:
        """Returns everything that the answers depend on, named for error messages."""

    def batch_identity(self, max_length: int, token_ids: str, plan: BatchPlan) -> dict[str, str]:
        """Returns the last values of each fingerprint; `token_ids` is the digest of the samples' token ids."""
        return {
            "--max-length": str(max_length),
            "--token-budget": str(self.base.token_budget),
            "--compression": self.config.compression,
            "--backend": self.config.backend,
            "token ids": token_ids,
            "plan": plan.digest(),
        }

    def claim(self, folder: EvaluationFolder, fingerprint: Fingerprint) -> bool:
        """Returns whether there is something to do in the folder, on the leader (see `RunFolder.claim`)."""
        return folder.claim(fingerprint)

    def begin(self, data: Data) -> None:
        """Prints what will be evaluated, on the leader. Raises if it could not be scored, before anything is sent."""

    def fetch(self, context: RunContext[Any, Any]) -> None:
        """Copies the samples to hosts that have not read them; every rank calls it."""

    def asked(self, model: Any, data: Data, context: RunContext[Any, Any]) -> Any:
        """Returns the model that answers: the loaded one, unless the samples need more."""
        return model

    @abstractmethod
    def audited(self, model: Any, exclude: Callable[[str], None]) -> AnsweringModel:
        """Returns the model, some of whose batches are audited (see `AuditedModel`)."""

    def window(self, data: Data, plan: BatchPlan, context: RunContext[Any, Any]) -> Window:
        """Returns this rank's window of requests in flight."""
        return context.window(self.base, plan)

    @abstractmethod
    def columns(self, data: Data, positions: np.ndarray, answers: np.ndarray) -> Columns:
        """Returns columns of answered samples, including their `index`; for positions see `Scorer`."""

    def scorer(self, data: Data) -> Scorer | None:
        """Returns a function that tells trackers which answers are right, on the leader; None if that is not known."""
        return None

    @abstractmethod
    def gather(self, local: RankOutput) -> tuple[Found, RunOutput[Any]]:
        """Gathers the answers of all ranks, and what they did; every rank calls it."""


def run(kind: Callable[[Any], Job[Any, Any]], context: Context) -> AnyCompleteRun | None:
    """Evaluates, and returns on the leader the content of `results.json`, else None; every rank calls it.

    `kind` creates the job; the context is not yet opened. If the run fails, the rank that has the root cause raises
    that EvaluationError; if it was asked to stop early, all ranks raise RunStopped.
    """
    with context:
        job = kind(keep_recorded_analysis(context))
        if context.topology.is_leader:
            job.prepare()
        if not context.has_results:
            context.open_swarm(job.base)
        if context.topology.is_leader:
            job.lead(context)
            context.announce_results()
            results = context.folder.results()
            if results is not None:
                context.trackers.log(metrics_with_limits(results), results.coverage.expected)
            return results
        answer(job, context)
        context.wait_for_results()
        return None


def answer(job: Job[Data, Found], context: Context) -> Answered[Data, Found] | None:
    """Answers all samples of a job; None if the folder already holds the complete run; every rank calls it.

    Host leaders write the samples while the other ranks load the model. The process group comes last, because its
    sockets must not be inherited by processes of the swarm.
    """
    config, topology = context.config, context.topology
    if topology.is_leader or job.each_host_reads:
        context.publish_dataset(job.write)

    def is_new() -> bool:
        data = job.open(context.scratch_dir)
        if not job.claim(context.folder, job.fingerprint(data, job.plan(data))):
            return False
        job.begin(data)
        return True

    context.claim(is_new)
    model = None if context.has_results else context.load_model(job.base, job.target)
    if context.is_complete():
        return None
    if model is None:  # complete, but to be scored differently: the answers are in the journal
        context.open_swarm(job.base)
        model = context.load_model(job.base, job.target)
    with context.process_group():
        job.fetch(context)
        data = job.open(context.wait_for_dataset())
        share = 0.0 if job.audit else config.session_share
        plan = decide_plan(context, partial(job.plan, data), job.base, model, share)
        asked, fingerprint = job.asked(model, data, context), job.fingerprint(data, plan)
        require_agreement(fingerprint.values)
        journal = context.open_journal(plan, asked.columns, fingerprint)
        progress = Progress(
            topology,
            context.rank_store,
            len(data),
            stop=context.stop,
            folder=context.folder.path,
            notice=asked.notice,
            stall_timeout=config.collective_timeout,
            stream=job.stream,
            unit=job.unit,
            tracked=_tracked(job, context, data, plan, journal),
        )
        worker = BatchWorker(
            job.audited(asked, journal.exclude) if job.audit else asked,
            data,
            plan,
            journal,
            progress,
            job.window(data, plan, context),
            context.stop,
            topology,
            drain_timeout=config.stop_grace,
            failures=job.failures,
            audited=audited_batches(len(plan), job.audit),
        )
        with progress.shown():
            context.stop.defer_signals()
            batches = worker.run(config.collective_timeout)
            local = worker.output(batches, partial(job.columns, data), asked.traffic())
            found, work = job.gather(local)
            del local  # this rank's answers, after a restart nearly all
    if work.failed and topology.is_leader:
        job.failures.require_few(len(work.failed), len(data), work.failed[-1][1])
    return Answered(data, plan, found, work)


def _tracked(
    job: Job[Data, Any], context: Context, data: Data, plan: BatchPlan, journal: Journal
) -> TrackedProgress | None:
    """Returns the progress for trackers, on the leader; another thread scores the answers."""
    if not context.topology.is_leader or not context.open_trackers():
        return None
    scorer = job.scorer(data)

    def news(scorer: Scorer) -> Iterator[Scored]:
        for outcome in journal.news():
            kept = outcome.answered_rows
            yield scorer(plan.batch(outcome.batch)[kept], outcome.answers[kept])

    scored = partial(news, scorer) if scorer else None
    return TrackedProgress(context.trackers, len(data), context.config.confidence, scored)
