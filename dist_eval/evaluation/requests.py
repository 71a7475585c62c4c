"""All requests of a run as one dataset: answered by all ranks, from the journal on like any evaluation."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
import torch

from dist_eval.data import continuations, generation
from dist_eval.data.answers import AnswerColumns, column_names, log_likelihood_columns
from dist_eval.data.collector import Columns
from dist_eval.data.continuations import TokenizedContinuations
from dist_eval.data.generation import TokenizedPrompts
from dist_eval.data.plan import BatchPlan, join_plans
from dist_eval.data.tokenizers import load_tokenizer
from dist_eval.distributed.collectives import broadcast, gather_columns
from dist_eval.distributed.rank_store import Topology
from dist_eval.errors import RunError, translating_os_errors
from dist_eval.evaluation.audit import AuditedTexts, audited_batches
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.drive import Judge, RunOutput, decide_plan, drive
from dist_eval.evaluation.worker import RankOutput
from dist_eval.inference.in_flight import Window
from dist_eval.inference.send_options import SendOptions
from dist_eval.metrics.predictions import prove_coverage
from dist_eval.model.backbone import AnsweringModel, ModelOnBackbone
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.generation import Generator, Texts, end_tokens_of
from dist_eval.model.language_model import CausalModel, LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.options.config import RunConfig
from dist_eval.options.groups import ModelOptions
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.process.files import chunks_of
from dist_eval.report.page import format_run, report_on
from dist_eval.results.harness import LANGUAGE_MODELING, HarnessResults, LanguageModelSummary
from dist_eval.results.inputs import ContinuationsSummary, Coverage, PromptsSummary
from dist_eval.results.work import RankWork
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.files import REPORT
from dist_eval.runs.fingerprint import Fingerprint
from dist_eval.runs.saved_samples import SavedTexts

FILES = (*continuations.FILES, *generation.FILES)
"""What a folder with requests holds."""


class Requests:
    """The requests of a run: continuations and prompts; a batch has either of them."""

    source = "the requests"

    def __init__(self, folder: Path) -> None:
        self.continuations, self.prompts = TokenizedContinuations(folder), TokenizedPrompts(folder)

    def __len__(self) -> int:
        return len(self.continuations) + len(self.prompts)

    def padded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collates a batch (see `TokenizedContinuations.padded` and `TokenizedPrompts.padded`)."""
        first = len(self.continuations)
        if indices[0] < first:
            return self.continuations.padded(indices)
        return self.prompts.padded(indices - first)

    def plan(self, token_budget: int, cache_tokens: int = 0) -> BatchPlan:
        """Plans the batches; those with prompts come first, because they take longest."""
        first = len(self.continuations)
        parts = [(self.prompts.plan(), np.arange(first, len(self)))] if len(self.prompts) else []
        return join_plans([*parts, (self.continuations.plan(token_budget, cache_tokens), np.arange(first))])

    def digest(self) -> str:
        """Returns a hash of the token ids, and of how texts are generated."""
        digests = [part.facts.digest for part in (self.continuations, self.prompts) if len(part)]
        return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()

    @property
    def columns(self) -> AnswerColumns:
        """Columns of the answers; those of the kinds of requests that there are."""
        kinds = [log_likelihood_columns()] if len(self.continuations) or not len(self.prompts) else []
        if len(self.prompts):
            kinds.append(self.prompts.columns)
        return np.dtype([field for kind in kinds for field in kind.descr])


class RequestModel(ModelOnBackbone):
    """A language model that answers requests of both kinds; columns that a request does not ask for are 0."""

    def __init__(self, model: LanguageModel, generator: Generator | None, columns: AnswerColumns) -> None:
        super().__init__(model.backbone, model.output.hidden_size, columns)
        self._model, self._generator = model, generator

    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        if lengths.shape[1] == Generator.LENGTHS:
            return self.generate(input_ids, lengths, record).answer
        return self._all_columns(self._model.answer(input_ids, lengths, options, record), lengths)

    def generate(self, input_ids: torch.Tensor, lengths: torch.Tensor, record: RouteRecord) -> Texts:
        """See `Generator.generate`."""
        assert self._generator is not None, "there are prompts"
        texts = self._generator.generate(input_ids, lengths, record)
        return texts._replace(answer=self._all_columns(texts.answer, lengths))

    def _all_columns(self, found: dict[str, torch.Tensor], lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        empty = np.zeros(len(lengths), dtype=self.columns)
        return {name: found.get(name, torch.from_numpy(empty[name].copy())) for name in column_names(self.columns)}


RequestContext = RunContext[Any, EvaluationFolder]
"""Of a run whose options are a `RunConfig` of any kind."""

Write = Callable[[Path], Fingerprint]
"""Writes the requests to a folder; returns what else the results depend on."""

Lead = Callable[[RequestContext, BaseModelSpec, CausalModel], HarnessResults | None]
"""Makes the requests, has them answered, and writes the results."""

_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class Answered:
    """What all ranks found; the answers, and what is made of them, on the leader only."""

    answers: np.ndarray  # of each request that has one, with the columns `Requests.columns`, of shape [n]
    index: np.ndarray  # their positions among the requests, ascending, int64 of shape [n]
    continuations: ContinuationsSummary  # the requests for log-likelihoods
    prompts: PromptsSummary  # the requests for texts
    plan: BatchPlan  # their batches
    coverage: Coverage  # the proof that each has one answer, or failed
    work: RunOutput[RankWork]  # what all ranks did

    def sections(self, context: RequestContext, base: BaseModelSpec, tokenizer: str) -> dict[str, Any]:
        """Returns the sections of `results.json` that do not depend on what was asked; on the leader."""
        prompts = None
        if self.prompts.texts:
            prompts = self.prompts.model_copy(update={"new_tokens": int(self.answers["length"].sum())})
        audited = getattr(context.config, "audit", 0.0)
        return {
            "problem_type": LANGUAGE_MODELING,
            "audit": self.work.audit.summary(audited) if audited or self.work.audit else None,
            "coverage": self.coverage,
            "requests": self.continuations,
            "prompts": prompts,
            "model": LanguageModelSummary(
                base=base.name,
                base_is_path=Path(base.name).is_dir(),
                digest=base.digest(),
                tokenizer_digest=tokenizer,
            ),
            **self.work.sections(self.plan, context.swarm),
        }


def run_with_leader(context: RequestContext, lead: Lead) -> HarnessResults | None:
    """Evaluates a language model by requests that the leader makes; every rank calls it.

    Args:
        context: this rank's part of the run, not yet opened.
        lead: called by the leader, with the base model and the language model; it calls `answer_requests`.

    Returns:
        On the leader the sections of `results.json`, else None.

    Raises:
        EvaluationError: the run failed; on the rank that has the root cause.
        RunStopped: it was asked to stop before its end; on all ranks.
    """
    with context:
        target = CausalModel.read(str(context.config.model))
        base = BaseModelSpec.read(context.config.select(ModelOptions), target)
        if context.topology.is_leader:
            OutputEmbedding(base.name, base.config)  # before anything is started: does the model have one?
            return lead(context, base, target)
        answer_requests(context, base, target, lambda folder: Fingerprint({}), sys.stderr)
        context.wait_for_results()
        return None


def answer_requests(
    context: RequestContext,
    base: BaseModelSpec,
    target: CausalModel,
    write: Write,
    stream: TextIO,
    judge: Judge | None = None,
) -> Answered | None:
    """Answers requests (see `drive`); every rank calls it.

    Args:
        context: this rank's part of the run.
        base: the base model.
        target: the language model.
        write: called by the leader.
        stream: where the leader shows the progress.
        judge: the leader's, of positions of requests.

    Returns:
        The answers; None if the folder holds this very run, complete.
    """
    config, topology = context.config, context.topology
    written: list[Fingerprint] = []
    if topology.is_leader:
        _publish(context, lambda folder: written.append(write(folder)))
        data = Requests(context.scratch_dir)
        answers = fingerprint_of(config, base, data, data.plan(base.token_budget))
        fingerprint = answers.joined(*written)
        context.claim(lambda: context.folder.claim(fingerprint, answers) or context.folder.is_scored_otherwise)
    if context.is_complete():
        return None
    context.open_swarm(base)
    loaded = cast(LanguageModel, context.load_model(base, target))
    with context.process_group():
        data = open_requests(context)
        model = requested_model(loaded, data, base, context)
        plan = decide_plan(context, partial(data.plan, base.token_budget), base, loaded, config.session_share)
        answered_by = fingerprint_of(config, base, data, plan)
        journal = context.open_journal(plan, model.columns, answered_by)
        window = window_of_requests(context, base, data, plan)

        def columns_of(rows: np.ndarray, answers: np.ndarray) -> Columns:
            return {"index": rows, **{name: answers[name] for name in column_names(model.columns)}}

        asked: AnsweringModel = model
        if audit := getattr(config, "audit", 0.0):
            asked = AuditedTexts(model, model, journal.exclude, config.audit_tolerance)
        driven = drive(
            *(context, asked, data, plan, answered_by, journal, columns_of),
            window=window,
            audited=audited_batches(len(plan), audit),
            judge=judge,
            stream=stream,
        )
        with driven as local:
            return _gather(local, model.columns, data, plan, topology)


def publish_results(
    context: RequestContext, results: HarnessResults | None = None, texts: SavedTexts | None = None
) -> HarnessResults | None:
    """Writes, reports and prints results, on the leader.

    Args:
        context: its part of the run.
        results: the sections of `results.json`; None if the folder holds this very run, complete.
        texts: those that were generated, in dataset order; None if there are none.

    Returns:
        The sections of `results.json`.
    """
    if results is not None:
        context.folder.complete_tasks(results, texts)
    return show_results(context, are_new=results is not None)


def show_results(context: RequestContext, *, are_new: bool) -> HarnessResults | None:
    """Reports and prints the results that the folder holds, on the leader (see `publish_results`)."""
    folder = context.folder
    context.announce_results()
    recorded = folder.task_results()
    context.log_results(recorded)
    if recorded is not None:
        if are_new or not (folder.path / REPORT).exists():
            report_on(folder.path, context.config.report)
        print(format_run(folder.path), flush=True)
    return recorded


def _gather(local: RankOutput, columns: AnswerColumns, data: Requests, plan: BatchPlan, topology: Topology) -> Answered:
    gathered = gather_columns(local.columns)
    index = gathered.pop("index")
    answers = np.empty(len(index), dtype=columns)
    for name, column in gathered.items():
        answers[name] = column
    work = RunOutput.gather(local, local.work)
    failed = (position for position, _ in work.failed)
    return Answered(
        answers=answers,
        index=index,
        continuations=data.continuations.facts,
        prompts=data.prompts.facts,
        plan=plan,
        coverage=prove_coverage(index, len(data), failed) if topology.is_leader else prove_coverage(index, 0),
        work=work,
    )


def requested_model(
    model: LanguageModel, data: Requests, base: BaseModelSpec, context: RunContext[Any, Any]
) -> RequestModel:
    """Returns what answers requests.

    Args:
        model: the language model.
        data: the requests.
        base: the base model.
        context: this rank's part of the run.
    """
    generator = None
    if len(data.prompts):
        tokenizer = load_tokenizer(base.name)
        ends = end_tokens_of(base.name, tokenizer)
        share = context.config.session_share / context.topology.world_size
        room = share * model.backbone.cache_tokens() if share else 0
        generator = Generator(model, data.prompts.facts.decodings, tokenizer, ends, room)
    return RequestModel(model, generator, data.columns)


def fingerprint_of(
    config: RunConfig,
    base: BaseModelSpec,
    data: Requests,
    plan: BatchPlan,
) -> Fingerprint:
    """Returns what answers depend on, by names for error messages."""
    return Fingerprint(
        {
            **base.identity(),
            "--max-length": str(data.continuations.facts.max_length),
            "--token-budget": str(base.token_budget),
            "--compression": config.compression,
            "--backend": config.backend,
            "token ids": data.digest(),
            "plan": plan.digest(),
        }
    )


def _publish(context: RunContext[Any, Any], write: Callable[[Path], Any]) -> None:
    """Lets this host's leader write the requests to a folder."""
    advice = "Free some space, or name another place with the environment variable TMPDIR."

    def checked(folder: Path) -> None:
        with translating_os_errors(RunError, f"The requests cannot be written to {folder}", advice):
            write(folder)

    context.publish_dataset(checked)


def window_of_requests(context: RunContext[Any, Any], base: BaseModelSpec, data: Requests, plan: BatchPlan) -> Window:
    """Returns this rank's window of requests in flight (see `RunContext.window`)."""
    window = context.window(base, plan)
    if len(data.prompts):  # a text takes long for itself; its servers' caches limit how many there are
        window = Window(window.largest)
    return window


def open_requests(context: RunContext[Any, Any]) -> Requests:
    """Opens the requests that the leader has written; every rank calls it, in an open process group.

    Other hosts' leaders copy the leader's files to theirs first.
    """
    topology = context.topology
    if topology.hosts > 1:
        place = context.scratch_dir
        contents = {name: b"".join(broadcast(chunks_of(place / name, _CHUNK_BYTES))) for name in FILES}

        def copy(folder: Path) -> None:
            for name, content in contents.items():
                (folder / name).write_bytes(content)

        if topology.node > 0:
            _publish(context, copy)
    return Requests(context.wait_for_dataset())
