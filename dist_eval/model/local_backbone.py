"""A base model without a head in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from dist_eval.base_model.architecture import Architecture
from dist_eval.data.answers import RouteSegment
from dist_eval.model.backbone import Backbone
from dist_eval.model.shell import final_norm_of, last_layer_outputs, prompted
from dist_eval.model.text_session import RecomputedTextSession, TextSession
from dist_eval.swarm.routes import RouteRecord


class LocalBackbone(Backbone):
    """A base model that runs in this process."""

    def __init__(self, model: Any, architecture: Architecture) -> None:
        self.model, self.config, self._architecture = model, architecture.config, architecture
        self.blocks: nn.ModuleList = model.get_submodule(architecture.layers)
        # applied to the positions that are needed; it acts on each token by itself
        self.final_norm = final_norm_of(model, architecture)
        self.word_embeddings = model.get_input_embeddings()
        self._one_at_a_time = threading.Lock()  # the hooks below belong to the module, not to a call

    def hidden_states(
        self,
        input_ids: torch.Tensor,
        prompts: torch.Tensor | None,
        deep_prompts: torch.Tensor | None,
        *,
        avoided: Sequence[RouteSegment] = (),
        record: RouteRecord | None = None,
    ) -> torch.Tensor:
        """See `Backbone.hidden_states`."""
        embeddings = prompted(self.word_embeddings, input_ids, prompts)
        with self._one_at_a_time, ExitStack() as hooks:
            for block, prompt in zip(self.blocks, deep_prompts if deep_prompts is not None else (), strict=False):
                hooks.callback(block.register_forward_pre_hook(_adding_hook(prompt), with_kwargs=True).remove)
            return last_layer_outputs(self.model, self._architecture, embeddings)

    def session(
        self,
        rows: int,
        max_length: int,
        prompts: torch.Tensor | None = None,
        deep_prompts: torch.Tensor | None = None,
        *,
        rolls_back: bool = True,
    ) -> TextSession:
        """See `Backbone.session`: the whole texts are computed at each step."""
        return RecomputedTextSession(lambda ids, _: self.hidden_states(ids, prompts, deep_prompts), rows)

    def move(self, device: torch.device) -> None:
        """See `Backbone.move`: the whole model."""
        self.model.to(device)


def _adding_hook(deep_prompt: torch.Tensor) -> Callable[..., Any]:
    length = deep_prompt.shape[0]

    def hook(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = args[0] if args else kwargs["hidden_states"]
        prompted = hidden[:, :length] + deep_prompt.to(hidden)
        hidden = torch.cat([prompted, hidden[:, length:]], dim=1)
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

    return hook
