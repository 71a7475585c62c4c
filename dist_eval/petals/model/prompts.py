"""The tuned tensors of a swarm model: soft prompts in its base model, under Petals' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dist_eval.errors import ConfigError
from dist_eval.petals.model.checkpoint import TunedCheckpoint

MODES = ("ptune", "deep_ptune")


def require_mode(mode: str | None, length: int) -> None:
    """Checks a tuning mode and its number of prompts: both are given, or neither."""
    if mode not in (None, *MODES):
        raise ConfigError(f"tuning_mode must be {' or '.join(map(repr, MODES))}, or None, not {mode!r}.")
    if (mode is not None) != (length > 0):
        raise ConfigError(f"tuning_mode={mode!r} with pre_seq_len={length}: give both, for prompts, or neither.")


class Prompts(nn.Module):
    """A mixin that adds soft prompts to a base model, according to its `config`."""

    if TYPE_CHECKING:  # transformers evaluates the annotations of its classes
        config: Any
        prompt_embeddings: nn.Embedding
        intermediate_prompt_embeddings: nn.Embedding

    def add_prompts(self) -> None:
        """Adds uninitialized embeddings on the current device, according to the config."""
        length, width = self.prompt_length, self.config.hidden_size
        if length:
            self.prompt_embeddings = nn.Embedding(length, width, dtype=torch.float32)
        if getattr(self.config, "tuning_mode", None) == "deep_ptune":
            size = self.config.num_hidden_layers * width
            self.intermediate_prompt_embeddings = nn.Embedding(length, size, dtype=torch.float32)

    @property
    def prompt_length(self) -> int:
        """Tokens before each text."""
        return int(getattr(self.config, "pre_seq_len", 0))

    def soft_prompts(self) -> torch.Tensor | None:
        """Returns the prompts before the first layer, of shape [pre_seq_len, hidden]."""
        return self.prompt_embeddings.weight if self.prompt_length else None

    def deep_prompts(self) -> torch.Tensor | None:
        """Returns the prompts that are added before each layer, of shape [layers, pre_seq_len, hidden]."""
        if getattr(self.config, "tuning_mode", None) != "deep_ptune":
            return None
        flat = self.intermediate_prompt_embeddings.weight
        return flat.view(len(flat), self.config.num_hidden_layers, self.config.hidden_size).transpose(0, 1)

    @torch.no_grad()
    def put_prompts(self, tuned: TunedCheckpoint) -> None:
        """Copies prompts from a checkpoint with the same settings."""
        if tuned.prompts is not None:
            self.prompt_embeddings.weight.copy_(tuned.prompts)
        if tuned.deep_prompts is not None:
            self.intermediate_prompt_embeddings.weight.copy_(tuned.deep_prompts.transpose(0, 1).flatten(1))
