"""Base model + output embedding → a language model: contexts and continuations → log-likelihoods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dist_eval.data.answers import log_likelihood_columns
from dist_eval.data.continuations import distinct_forwards
from dist_eval.inference.models import SendOptions
from dist_eval.model.backbone import Backbone, ModelOnBackbone
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.options.groups import MAX_TOKEN_BUDGET
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.revisions import pinned


@dataclass(frozen=True)
class CausalModel:
    """A language model with its own head, before it is loaded."""

    name: str  # folder or hub name
    config: Any  # its `transformers` config

    folder = None
    extra_tokens = -1  # the last token of a text is not sent

    @classmethod
    def read(cls, name: str) -> CausalModel:
        """Reads a model's config."""
        return cls(name, read_base_config(name, pinned("model", name)))

    def on(self, backbone: Backbone, token_budget: int) -> LanguageModel:
        """Puts the output embedding on the base model; requests have at most `token_budget` tokens."""
        return LanguageModel(backbone, OutputEmbedding(self.name, self.config), token_budget)


class LanguageModel(ModelOnBackbone):
    """A base model with its output embedding.

    A batch of more than `token_budget` tokens (one text with many continuations) takes several requests.
    """

    def __init__(self, backbone: Backbone, output: OutputEmbedding, token_budget: int = MAX_TOKEN_BUDGET) -> None:
        super().__init__(backbone, output.hidden_size, log_likelihood_columns())
        self.output, self._token_budget = output, token_budget

    def forwards(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """See `ModelOnBackbone.forwards`: equal forwards are sent once."""
        return torch.from_numpy(distinct_forwards(input_ids.numpy(), lengths[:, 1].numpy())[0])

    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        """Computes the log-likelihoods of continuations.

        The model gets context and continuation without the last token. Texts that are equal up to there share one
        forward, so the one-token choices of a question cost one.
        `lengths` has the number of tokens of each context, and of context and continuation together; neither is empty.
        `log_likelihood` of the answer is in nats; `is_greedy` is whether greedy decoding would give the continuation.
        """
        forwards, which = distinct_forwards(input_ids.numpy(), lengths[:, 1].numpy())
        rows = max(1, self._token_budget // forwards.shape[1])
        if options.shared is not None:
            rows = len(forwards)  # the shared prefix decides which are sent together
        sizes = np.empty(len(forwards), dtype=np.int64)
        sizes[which] = lengths[:, 1].numpy() - 1
        parts = zip(torch.from_numpy(forwards).split(rows), torch.from_numpy(sizes).split(rows), strict=True)
        # each position predicts the token after it
        counts = (lengths[:, 1] - lengths[:, 0]).numpy()
        rows = np.repeat(np.arange(len(counts)), counts)
        places = np.concatenate([np.arange(start, end) for start, end in lengths.tolist()])
        tokens = input_ids[rows, places]
        # a position that several continuations share goes through the output embedding once
        needed, positions = np.unique(which[rows] * forwards.shape[1] + places - 1, return_inverse=True)
        hidden, start = list[torch.Tensor](), 0
        for part, own_sizes in parts:
            of_part = needed[(needed >= start) & (needed < start + part.numel())] - start
            hidden.append(self.hidden_states(part, own_sizes, options, record, torch.from_numpy(of_part)))
            start += part.numel()
        states = self.backbone.final_norm(torch.cat(hidden))
        found, is_likeliest = self.output.log_likelihoods(states, torch.from_numpy(positions), tokens)
        greedy = np.ones(len(counts), dtype=np.uint8)
        np.logical_and.at(greedy, rows, is_likeliest.numpy())
        sums = np.bincount(rows, weights=found.numpy(), minlength=len(counts))
        return {"log_likelihood": torch.from_numpy(sums), "is_greedy": torch.from_numpy(greedy)}
