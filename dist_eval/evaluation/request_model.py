"""All requests of a run as one dataset, continuations before prompts, and the model that answers both kinds."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dist_eval.data import continuations, generation
from dist_eval.data.answers import AnswerColumns, log_likelihood_columns
from dist_eval.data.continuations import TokenizedContinuations
from dist_eval.data.generation import TokenizedPrompts
from dist_eval.data.plan import BatchPlan, join_plans
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.generation import Generator
from dist_eval.model.language_model import LanguageModel
from dist_eval.swarm.routes import ANY_ROUTE, RouteRecord, SendOptions

FILES = (*continuations.FILES, *generation.FILES)
"""What a folder with requests holds."""


class Requests:
    """The requests of a run; a batch has either continuations or prompts.

    Attributes:
        continuations: those whose log-likelihoods are asked for.
        prompts: those after which a text is asked for.
    """

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
    """A language model that answers requests of both kinds."""

    def __init__(self, model: LanguageModel, generator: Generator | None, columns: AnswerColumns) -> None:
        super().__init__(model.backbone, model.output.hidden_size)
        self._model, self._generator, self._columns = model, generator, columns

    @property
    def columns(self) -> AnswerColumns:
        """Columns of an answer; those that a request does not ask for are 0."""
        return self._columns

    def answer(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        options: SendOptions = ANY_ROUTE,
        record: RouteRecord | None = None,
    ) -> dict[str, torch.Tensor]:
        """Answers a batch (see `LanguageModel.answer` and `Generator.answer`)."""
        is_prompt = lengths.shape[1] == Generator.LENGTHS
        model: Any = self._generator if is_prompt else self._model
        found = model.answer(input_ids, lengths, options, record)
        empty = np.zeros(len(lengths), dtype=self._columns)
        return {name: found.get(name, torch.from_numpy(empty[name].copy())) for name in self._columns.names or ()}
