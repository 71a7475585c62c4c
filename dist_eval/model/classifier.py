"""Base model + tuned tensors → a classifier: token ids → logits. The base model runs on a swarm or in this process.

Both backends share everything but the transformer blocks. Two things are unusual on purpose:

- Padding is on the right and no attention mask is sent (Petals refuses one): attention is causal, so padding cannot
  affect real tokens. The last real token is found by the text's length, never by the pad id.
- Prompts are sent once per request, as a batch of 1 that servers broadcast, not once per example.
"""

from __future__ import annotations

from typing import Any

import torch

from dist_eval.data.answers import logits_columns
from dist_eval.inference.models import ANY_ROUTE, SendOptions
from dist_eval.model.backbone import Backbone, ModelOnBackbone, SoftPrompts, load_local_backbone
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.model.loading import base_fingerprint


class Classifier(ModelOnBackbone):
    """A base model with a tuned head and prompts."""

    def __init__(self, backbone: Backbone, tuned: TunedCheckpoint) -> None:
        prompts = SoftPrompts(tuned.prompts, tuned.deep_prompts)
        super().__init__(backbone, tuned.head.shape[1], logits_columns(tuned.num_labels), prompts)
        self.tuned = tuned

    @property
    def num_labels(self) -> int:
        return self.tuned.num_labels

    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        return {"logits": self.scores(input_ids, lengths, options, record).to("cpu", torch.float32)}

    def logits(self, input_ids: torch.Tensor, lengths: torch.Tensor, *route: Any, **further: Any) -> torch.Tensor:
        """Classifies a batch (see `answer`); returns float32 of shape [batch, num_labels]."""
        return self.answer(input_ids, lengths, *route, **further)["logits"]

    def scores(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        options: SendOptions = ANY_ROUTE,
        record: RouteRecord | None = None,
    ) -> torch.Tensor:
        """Classifies a batch for training: differentiable in the tuned tensors, on the head's device."""
        tuned = self.tuned
        starts = torch.arange(len(lengths)) * (tuned.pre_seq_len + input_ids.shape[1])
        rows = starts + tuned.pre_seq_len + lengths.cpu() - 1
        last = self.hidden_states(input_ids, lengths, options, record, rows)
        return self.backbone.final_norm(last).to(tuned.head) @ tuned.head.T


def load_locally(model: str, tuned: TunedCheckpoint) -> Classifier:
    """Builds a classifier that runs in this process.

    The base model must have the weights that the checkpoint was tuned on.
    """
    return with_tuned_head(load_local_backbone(model), model, tuned)


def with_tuned_head(backbone: Backbone, model: str, tuned: TunedCheckpoint) -> Classifier:
    """Puts the tuned head and prompts on a base model."""
    found = base_fingerprint(backbone.word_embeddings, backbone.final_norm)
    tuned.require_base(model, backbone.config, found)
    return Classifier(backbone, tuned)
