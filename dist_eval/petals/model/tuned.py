"""Copies the tuned tensors of a swarm model out and in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dist_eval.errors import ConfigError
from dist_eval.petals.base_model.problem_types import class_names, problem_from
from dist_eval.petals.model.checkpoint import ARCHITECTURE, TunedCheckpoint


def tuned_tensors_of(model: Any) -> TunedCheckpoint:
    """Copies the tuned tensors out of a swarm model; without a head, the checkpoint's head has no rows."""
    config, base = model.config, model.swarm_base
    linear = _head_of(model)
    head = torch.empty(0, config.hidden_size) if linear is None else linear.weight

    def copied(tensor: torch.Tensor | None) -> Any:
        return None if tensor is None else tensor.detach().to("cpu", torch.float32, copy=True).contiguous()

    return TunedCheckpoint(
        head=copied(head),
        prompts=copied(base.soft_prompts()),
        deep_prompts=copied(base.deep_prompts()),
        label_names=class_names(config.id2label, len(head), "The model's config") if len(head) else [],
        architecture={key: getattr(config, key, None) for key in ARCHITECTURE},
        problem=problem_from(config.problem_type, len(head), "The model's config"),
        base_model=config._name_or_path or None,
        adapter=getattr(config, "active_adapter", None),
    )


def _head_of(model: Any) -> nn.Linear | None:
    """Returns a classifier's head; raises a `ConfigError` if its weight alone would not be the whole head."""
    head = getattr(model, "score", None)
    if head is not None and (not isinstance(head, nn.Linear) or head.bias is not None):
        raise ConfigError(
            "Only a linear head without a bias can be saved, because that is all a checkpoint contains, not "
            f"{' '.join(repr(head).split())}: save it with torch.save."
        )
    return head


@torch.no_grad()
def put_tuned_tensors(tuned: TunedCheckpoint, model: Any) -> None:
    """Copies tuned tensors into a swarm model with the same settings."""
    if tuned.num_labels:
        model.score.weight.copy_(tuned.head)
    model.swarm_base.put_prompts(tuned)
