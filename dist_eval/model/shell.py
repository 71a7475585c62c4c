"""What a client computes of a language model itself: all but its layers, by transformers' own classes.

The inputs of the first layer are those that `base_model.embedding` computes. The final norm is applied by itself, to
the positions that are needed. Logits pass through transformers' own language model with its base model left out, so
that a scale or a soft cap is applied as it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dist_eval.base_model.architecture import Architecture, replace_module
from dist_eval.base_model.embedding import last_layer_outputs, load_without_layers, prompted
from dist_eval.data.revisions import pinned
from dist_eval.errors import CheckpointError


class Shell:
    """A base model without its layers, in float32; `config` is that of the decoder."""

    def __init__(self, name: str, config: Any) -> None:
        architecture = Architecture(config, name)
        self.config, self.has_attention_cache = architecture.config, architecture.has_attention_cache
        self.has_lookup = architecture.has_lookup
        self._architecture = architecture
        self.model = load_without_layers(name, architecture, pinned("model", name))
        self.word_embeddings: nn.Embedding = self.model.get_submodule(architecture.embeddings)
        self.final_norm = final_norm_of(self.model, architecture)
        self._one_at_a_time = threading.Lock()

    def embedded(self, input_ids: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
        """Computes the inputs of the first layer, float32 of shape [batch, pre_seq_len + length, hidden]."""
        words = prompted(self.word_embeddings, input_ids, prompts)
        with self._one_at_a_time:
            return last_layer_outputs(self.model, self._architecture, words)

    def move(self, device: torch.device) -> None:
        self.model.to(device)


def final_norm_of(model: nn.Module, architecture: Architecture) -> nn.Module:
    """Returns the norm after the layers of a base model."""
    return nn.Identity() if architecture.final_norm is None else model.get_submodule(architecture.final_norm)


@dataclass(frozen=True)
class LanguageModelHead:
    """How a language model makes logits of hidden states after the final norm."""

    path: str  # of the output embedding in the language model
    # what is done to the products of hidden states and output embedding, floats of shape [positions, tokens]; None for
    # nothing
    function: Callable[[torch.Tensor], torch.Tensor] | None

    @classmethod
    def find(cls, architecture: Architecture) -> LanguageModelHead:
        from transformers.modeling_outputs import MoeModelOutputWithPast

        class Output(MoeModelOutputWithPast):
            def __getattr__(self, name: str) -> None:
                """What only some models pass on is not there."""

        class Given(nn.Module):
            def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> Any:
                return Output(last_hidden_state=inputs_embeds)

        model = architecture.language_model()
        head = model.get_output_embeddings()
        path = next(path for path, module in model.named_modules() if module is head)
        replace_module(model, path, nn.Identity())
        bases = [path for path, module in model.named_modules() if type(module) is architecture.base_class]
        if not bases:
            raise CheckpointError(f"The logits of a {architecture.config.model_type!r} are not made of its base model.")
        replace_module(model, bases[0], Given())

        def function(products: torch.Tensor) -> torch.Tensor:
            return model(inputs_embeds=products.unsqueeze(0), use_cache=False).logits[0]

        products = torch.linspace(-100, 100, 64).view(2, 32)
        return cls(path, None if torch.equal(function(products), products) else function)
