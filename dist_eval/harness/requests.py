"""All requests of a run as one dataset: answered by all ranks, from the journal on like any evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

import numpy as np

from dist_eval.data.answers import column_names
from dist_eval.data.collector import Columns
from dist_eval.data.continuations import FILES, TokenizedContinuations
from dist_eval.data.plan import Plan
from dist_eval.distributed.collectives import all_gather, broadcast, gather_columns, require_agreement
from dist_eval.distributed.progress import Progress
from dist_eval.errors import RunError, translating_os_errors
from dist_eval.evaluation.session import Session
from dist_eval.evaluation.worker import BatchWorker, FailurePolicy
from dist_eval.harness.folder import HarnessFolder
from dist_eval.metrics.predictions import prove_coverage
from dist_eval.model.backends import LoadedModel
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.language_model import CausalModel
from dist_eval.options.harness import HarnessConfig
from dist_eval.results.inputs import ContinuationsSummary, Coverage, PlanSummary, SessionsSummary
from dist_eval.results.work import RankTimeline, RankWork
from dist_eval.runs.journal import Fingerprint, Journal

HarnessSession = Session[HarnessConfig, HarnessFolder]

Write = Callable[[Path], Mapping[str, str]]
"""Writes the requests to a folder; returns what else the results depend on, by names for error messages."""

_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Answered:
    """What all ranks found; the answers, and what is made of them, on the leader only.

    Attributes:
        answers: of each request, with the columns of a language model, of shape [n].
        facts: the requests.
        plan: their batches.
        sessions: what was planned for sessions, None without any.
        coverage: the proof that each has one answer.
        ranks: what each rank did.
        timelines: each rank's entry in `timeline.json`.
        precisions: those in which servers computed.
    """

    answers: np.ndarray
    facts: ContinuationsSummary
    plan: PlanSummary
    sessions: SessionsSummary | None
    coverage: Coverage
    ranks: list[RankWork]
    timelines: list[RankTimeline]
    precisions: list[str]


def answer_requests(
    session: HarnessSession, base: BaseModelSpec, target: CausalModel, write: Write, stream: TextIO
) -> Answered | None:
    """Answers requests; every rank calls it.

    Args:
        session: this rank's part of the run.
        base: the base model.
        target: the language model.
        write: called by the leader.
        stream: where the leader shows the progress.

    Returns:
        The answers; None if the folder holds this very run, complete.

    Raises:
        EvaluationError: the run failed; on the rank that has the root cause.
        RunStopped: it was asked to stop before its end; on all ranks.
    """
    config, topology = session.config, session.topology
    identity: dict[str, str] = {}
    if topology.is_leader:
        session.publish_dataset(lambda folder: identity.update(_written(write, folder)))
        data = TokenizedContinuations(session.scratch_dir)
        fingerprint = fingerprint_of(config, base, data, data.plan(base.token_budget), identity)
        session.claim(lambda: session.folder.claim(fingerprint) or session.folder.is_scored_otherwise)
    if session.is_complete():
        return None
    session.open_swarm(base)
    model = session.load_model(base, target)
    with session.process_group():
        data = TokenizedContinuations(_folder_on_host(session))
        plan = session.plan_with_sessions(partial(data.plan, base.token_budget), model, config.session_share)
        run_id = fingerprint_of(config, base, data, plan).digest()
        journal = Journal(session.folder.path, plan.sizes, model.columns, rank=topology.rank, run=run_id)
        session.closing(journal)
        require_agreement({"model": base.digest(), "requests": data.facts.digest, "plan": plan.digest()})
        progress = Progress(
            *(topology, session.rank_store, len(data)),
            stop=session.stop,
            folder=session.folder.path,
            notice=model.notice,
            stall_timeout=config.collective_timeout,
            stream=stream,
        )
        worker = BatchWorker(
            *(model, data, plan, journal, progress, session.window(base), session.stop),
            drain_timeout=config.stop_grace,
            failures=FailurePolicy(),
            session_ranks=session.session_ranks,
        )
        with progress.shown():
            session.stop.defer_signals()
            batches = worker.run(topology, config.collective_timeout)
            return _combine(session, model, worker, batches, data, plan)


def _combine(
    session: HarnessSession,
    model: LoadedModel,
    worker: BatchWorker,
    batches: np.ndarray,
    data: TokenizedContinuations,
    plan: Plan,
) -> Answered:
    def columns_of(rows: np.ndarray, answers: np.ndarray) -> Columns:
        return {"index": rows, **{name: answers[name] for name in column_names(model.columns)}}

    topology = session.topology
    local, _, _, precisions = worker.collect(batches, columns_of)
    gathered = gather_columns(local, order_by="index")
    timeline = RankTimeline(
        rank=topology.rank,
        host=topology.host,
        batches=worker.timeline.bins(),
        servers={peer: timeline.bins() for peer, timeline in model.timelines().items()},
    )
    index = gathered.pop("index")
    answers = np.empty(len(index), dtype=model.columns)
    for name, column in gathered.items():
        answers[name] = column
    return Answered(
        answers=answers,
        facts=data.facts,
        plan=plan.summary(),
        sessions=plan.sessions(sum(all_gather(worker.fell_back))),
        coverage=prove_coverage(index, len(data) if topology.is_leader else 0),
        ranks=all_gather(worker.work(topology, model.traffic())),
        timelines=all_gather(timeline),
        precisions=sorted(set[str]().union(*all_gather(precisions))),
    )


def fingerprint_of(
    config: HarnessConfig,
    base: BaseModelSpec,
    data: TokenizedContinuations,
    plan: Plan,
    identity: Mapping[str, str] = MappingProxyType({}),
) -> Fingerprint:
    """Returns what answers depend on, and what the results depend on besides, by names for error messages.

    Args:
        config: the run's options.
        base: the base model.
        data: the requests.
        plan: their batches.
        identity: further values: those that answers do not depend on, but what the harness makes of them.
    """
    return Fingerprint(
        {
            **base.identity(),
            **identity,
            "--max-length": str(data.facts.max_length),
            "--token-budget": str(base.token_budget),
            "--compression": config.compression,
            "--backend": config.backend,
            "token ids": data.facts.digest,
            "plan": plan.digest(),
        }
    )


def _written(write: Write, folder: Path) -> Mapping[str, str]:
    advice = "Free some space, or name another place with the environment variable TMPDIR."
    with translating_os_errors(RunError, f"The requests cannot be written to {folder}", advice):
        return write(folder)


def _folder_on_host(session: HarnessSession) -> Path:
    """Returns the folder with the requests; other hosts' leaders copy the leader's files to theirs first."""
    topology = session.topology
    if topology.hosts > 1:
        place = session.scratch_dir
        contents = {name: b"".join(broadcast(_chunks(place / name))) for name in FILES}

        def copy(folder: Path) -> None:
            for name, content in contents.items():
                (folder / name).write_bytes(content)

        if topology.node > 0:
            session.publish_dataset(copy)
    return session.wait_for_dataset()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
