"""Loads the local part of a model: transformers' own class, with weights from safetensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.loading import load_model
from dist_eval.petals.base_model.weights import ModelWeights
from dist_eval.petals.model.checkpoint import fingerprint
from dist_eval.petals.model.checkpoint_files import DEEP_PROMPTS, HEAD, PROMPTS

TUNED = (HEAD, PROMPTS, DEEP_PROMPTS)
"""Ends of the names of tuned tensors."""

_FINGERPRINT_ROWS = 64


def load_client_model(
    model_class: Any,
    architecture: Architecture,
    name: str,
    revision: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Loads the local part of a model whose layers a swarm computes, in eval mode.

    `model_class` was made by `base.base_class` or by `classes`, and `architecture` is that of its base model.
    `revision` is a commit on a hub, `dtype` that of embeddings, norm and head. Only prompts and a classifier's head
    have gradients; missing ones are initialized randomly.
    """
    whole = model_class(architecture.config)
    path = next(path for path, module in whole.named_modules() if module is whole.swarm_base)
    before = f"{path}." if path else ""
    weights = ModelWeights(name, architecture, revision)
    tensors: dict[str, torch.Tensor] = {}
    for part in (architecture.embeddings, *architecture.norms):
        tensors |= {before + key: tensor for key, tensor in weights.tensors(f"{part}.").items()}
    for key in whole.state_dict():
        if not key.startswith(before) and (found := weights.find(key)):
            tensors[key] = weights.slice(found)[:]
    tuned = {key for key in whole.state_dict() if key.endswith(TUNED)}
    model = load_model(model_class, architecture, tensors, name, dtype=dtype, drawn=tuned)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(key in tuned)
    model.swarm_base.words_are_loaded()
    return model


def load_whole_base(architecture: Architecture, name: str, revision: str | None = None) -> Any:
    """Loads a base model that runs in this process, in float32, in eval mode and without gradients."""
    tensors = ModelWeights(name, architecture, revision).tensors("")
    return load_model(architecture.base_class, architecture, tensors, name).requires_grad_(False)


def final_norm_of(model: nn.Module, architecture: Architecture) -> nn.Module:
    """Returns the norm after the layers of a base model."""
    return nn.Identity() if architecture.final_norm is None else model.get_submodule(architecture.final_norm)


def base_fingerprint(word_embeddings: nn.Embedding, final_norm: nn.Module) -> str:
    """Hashes weights that every client of a base model has locally: its final norm and 64 evenly spaced embeddings."""
    weight = word_embeddings.weight
    rows = torch.linspace(0, weight.shape[0] - 1, min(_FINGERPRINT_ROWS, weight.shape[0])).long()
    return fingerprint([weight[rows], *final_norm.state_dict().values()])
