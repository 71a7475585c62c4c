"""Sends requests to a language model: for log-likelihoods of continuations, and for texts after prompts."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.data import continuations, generation
from dist_eval.data.answers import AnswerColumns, column_names, log_likelihood_columns
from dist_eval.data.collector import Columns
from dist_eval.data.continuations import TokenizedContinuations
from dist_eval.data.generation import TokenizedPrompts
from dist_eval.data.plan import BatchPlan, join_plans
from dist_eval.data.tokenizers import load_tokenizer
from dist_eval.distributed.collectives import broadcast, gather_columns
from dist_eval.errors import RunError, translating_os_errors
from dist_eval.evaluation.audit import AuditedTexts
from dist_eval.evaluation.context import RunContext
from dist_eval.evaluation.job import Answered, Context, Job
from dist_eval.evaluation.ranks import RunOutput
from dist_eval.evaluation.worker import RankOutput
from dist_eval.inference.in_flight import Window
from dist_eval.inference.models import AnsweringModel
from dist_eval.metrics.predictions import prove_coverage
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.generation import Generator, end_tokens_of
from dist_eval.model.language_model import CausalModel, LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.options.config import RunConfig
from dist_eval.options.groups import ModelOptions
from dist_eval.process.files import chunks_of
from dist_eval.results.tasks import LANGUAGE_MODELING, LanguageModelSummary
from dist_eval.results.work import RankWork
from dist_eval.runs.evaluation_folder import EvaluationFolder
from dist_eval.runs.fingerprint import Fingerprint

FILES = (*continuations.FILES, *generation.FILES)
"""Files of a folder with requests."""


class Requests:
    """The requests of a run, continuations and prompts; a batch has only one kind."""

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
        """Plans the batches; those with prompts come first because they take longest."""
        first = len(self.continuations)
        parts = [(self.prompts.plan(), np.arange(first, len(self)))] if len(self.prompts) else []
        return join_plans([*parts, (self.continuations.plan(token_budget, cache_tokens), np.arange(first))])

    def digest(self) -> str:
        """Returns a hash of the token ids, and of how texts are generated."""
        digests = [part.facts.digest for part in (self.continuations, self.prompts) if len(part)]
        return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()

    @property
    def columns(self) -> AnswerColumns:
        """Columns of the answers, for each kind of request present."""
        kinds = [log_likelihood_columns()] if len(self.continuations) or not len(self.prompts) else []
        if len(self.prompts):
            kinds.append(self.prompts.columns)
        return np.dtype([field for kind in kinds for field in kind.descr])


_CHUNK_BYTES = 1 << 22
_ADVICE = "Free some space, or name another place with the environment variable TMPDIR."


class RequestJob(Job[Requests, np.ndarray]):
    """Evaluates a language model with requests that the leader creates.

    The answers are an array with the columns `Requests.columns` and `index`, the positions among the requests.
    """

    target: CausalModel
    each_host_reads = False

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.target = CausalModel.read(str(config.model))
        self.base = BaseModelSpec.read(config.select(ModelOptions), self.target)
        OutputEmbedding(self.base.name, self.base.config)  # raises if the model has none, before anything is started

    def write(self, folder: Path) -> None:
        with translating_os_errors(RunError, f"The requests cannot be written to {folder}", _ADVICE):
            self.write_requests(folder)

    @abstractmethod
    def write_requests(self, folder: Path) -> None:
        """Writes continuations and prompts to a folder, on the leader."""

    def open(self, folder: Path) -> Requests:
        return Requests(folder)

    def plan(self, data: Requests, cache_tokens: int = 0) -> BatchPlan:
        return data.plan(self.base.token_budget, cache_tokens)

    def fingerprint(self, data: Requests, plan: BatchPlan) -> Fingerprint:
        own = self.batch_identity(data.continuations.facts.max_length, data.digest(), plan)
        return Fingerprint({**self.base.identity(), **self._end_tokens(data), **own})

    def _end_tokens(self, data: Requests) -> dict[str, str]:
        """Returns the tokens that end a generated text, if they are others than the tokenizer's own."""
        if not len(data.prompts):
            return {}
        tokenizer = load_tokenizer(self.base.name)
        ends = end_tokens_of(self.base.name, tokenizer)
        return {} if ends == [tokenizer.eos_token_id] else {"end tokens": json.dumps(ends)}

    @abstractmethod
    def identity(self) -> Fingerprint:
        """Returns what results depend on besides the answers, on the leader, once the requests are written."""

    def claim(self, folder: EvaluationFolder, fingerprint: Fingerprint) -> bool:
        return folder.claim(fingerprint.joined(self.identity()), fingerprint) or folder.is_scored_otherwise

    def fetch(self, context: RunContext[Any, Any]) -> None:
        """Copies the leader's files to the other hosts."""
        if context.topology.hosts > 1:
            place = context.scratch_dir
            contents = {name: b"".join(broadcast(chunks_of(place / name, _CHUNK_BYTES))) for name in FILES}

            def copy(folder: Path) -> None:
                with translating_os_errors(RunError, f"The requests cannot be written to {folder}", _ADVICE):
                    for name, content in contents.items():
                        (folder / name).write_bytes(content)

            if context.topology.node > 0:
                context.publish_dataset(copy)

    def asked(self, model: LanguageModel, data: Requests, context: RunContext[Any, Any]) -> ModelOnBackbone:
        if not len(data.prompts):
            return model
        tokenizer = load_tokenizer(self.base.name)
        ends = end_tokens_of(self.base.name, tokenizer)
        share = self.config.session_share / context.topology.world_size
        room = share * model.backbone.cache_tokens() if share else 0
        return Generator(model, data.prompts.facts.decodings, tokenizer, ends, room, data.columns)

    def audited(self, model: Generator, exclude: Callable[[str], None]) -> AnsweringModel:
        return AuditedTexts(model, exclude, self.config.audit_tolerance)

    def window(self, data: Requests, plan: BatchPlan, context: RunContext[Any, Any]) -> Window:
        window = super().window(data, plan, context)
        if len(data.prompts):  # a text takes a long time, and the servers' caches limit their number
            window = Window(window.largest)
        return window

    def columns(self, data: Requests, positions: np.ndarray, answers: np.ndarray) -> Columns:
        return {"index": positions, **{name: answers[name] for name in column_names(data.columns)}}

    def gather(self, local: RankOutput) -> tuple[np.ndarray, RunOutput[RankWork]]:
        gathered = gather_columns(local.columns)
        kinds = [(name, column.dtype, column.shape[1:]) for name, column in gathered.items()]
        answers = np.empty(len(gathered["index"]), dtype=np.dtype(kinds))
        for name, column in gathered.items():
            answers[name] = column
        return answers, RunOutput.gather(local, local.work)

    def sections(
        self, answered: Answered[Requests, np.ndarray], context: Context, tokenizer_digest: str
    ) -> dict[str, Any]:
        """Returns the sections of `results.json` that all kinds of requests have, on the leader.

        Raises CoverageError if a request has no answer, or several.
        """
        data, work = answered.data, answered.work
        prompts = None
        if len(data.prompts):
            new_tokens = int(answered.found["length"].sum())
            prompts = data.prompts.facts.model_copy(update={"new_tokens": new_tokens})
        failed = (position for position, _ in work.failed)
        return {
            "problem_type": LANGUAGE_MODELING,
            "coverage": prove_coverage(answered.found["index"], len(data), failed),
            "requests": data.continuations.facts,
            "prompts": prompts,
            "model": LanguageModelSummary(
                base=self.base.name,
                base_is_path=Path(self.base.name).is_dir(),
                digest=self.base.digest(),
                tokenizer_digest=tokenizer_digest,
            ),
            **work.sections(answered.plan, context.swarm, self.audit),
        }
