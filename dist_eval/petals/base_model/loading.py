"""Builds transformers' models from tensors, and checks that they are exactly the needed ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from dist_eval.errors import CheckpointError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.weights import require_all_read, without_warnings


def load_model(
    model_class: Any,
    architecture: Architecture,
    tensors: Mapping[str, torch.Tensor],
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    drawn: Collection[str] = (),
) -> Any:
    """Builds a model from tensors by their names in it, in eval mode.

    `model_class` is a class of transformers, or derived from one, and `architecture` that of its base model. The model
    keeps `name`, the base model's. Tensors in `drawn`, such as a new head, are initialized at random if missing. Raises
    `CheckpointError` if another tensor is missing, has the wrong shape, or would not be used.
    """
    with without_warnings():
        model, report = model_class.from_pretrained(
            None,
            config=architecture.config,
            state_dict=dict(tensors),
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # an error below
        )
    missing = {*map(str, report["missing_keys"])} - {*drawn}
    if wrong := sorted([*missing, *(str(key[0]) for key in report["mismatched_keys"])]):
        raise CheckpointError(f"The base model {name} lacks weights for {', '.join(wrong[:5])}.")
    layers = [f"{architecture.layers}.{index}." for index in range(architecture.config.num_hidden_layers)]
    computed = (*layers, *(f"{path}." for path in architecture.norms))
    unread = [key for key in report["unexpected_keys"] if key.startswith(computed)]
    require_all_read(unread, f"The base model {name}")
    model.name_or_path = model.config.name_or_path = name  # transformers calls a model that is made of tensors "None"
    return model.eval()
