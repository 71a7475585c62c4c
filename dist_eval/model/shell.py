"""What a client computes of a language model itself: all but its layers, by transformers' own classes.

The base model is built with a single layer that returns its inputs, so what comes out of that are the inputs of the
first layer: embeddings with whatever scale, norm or position a family adds to them. The final norm is applied by
itself, to the positions that are needed. Logits pass through transformers' own language model with its base model left
out, so that a scale or a soft cap is applied as it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dist_eval.base_model.architecture import Architecture, LayerStub, replace_module
from dist_eval.base_model.weights import ModelWeights, require_all_read, without_warnings
from dist_eval.data.revisions import pinned
from dist_eval.errors import CheckpointError
from dist_eval.model.checkpoint import fingerprint

_FINGERPRINT_ROWS = 64


class Shell:
    """A base model without its layers, in float32; `config` is that of the decoder."""

    def __init__(self, name: str, config: Any) -> None:
        architecture = Architecture(config, name)
        self.config, self.has_attention_cache = architecture.config, architecture.has_attention_cache
        self._architecture = architecture
        self.model = _load(name, architecture)
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


def base_fingerprint(word_embeddings: nn.Embedding, final_norm: nn.Module) -> str:
    """Hashes what every client of a base model holds locally: its final norm and 64 evenly spaced embeddings."""
    weight = word_embeddings.weight
    rows = torch.linspace(0, weight.shape[0] - 1, min(_FINGERPRINT_ROWS, weight.shape[0])).long()
    return fingerprint([weight[rows], *final_norm.state_dict().values()])


def last_layer_outputs(model: nn.Module, architecture: Architecture, embeddings: torch.Tensor) -> torch.Tensor:
    """Runs a base model, one call at a time; returns the outputs of its last layer, before the final norm."""
    found: list[torch.Tensor] = []
    layer = model.get_submodule(architecture.layers)[-1]  # type: ignore[index]
    hook = layer.register_forward_hook(
        lambda _, args, output: found.append(output[0] if isinstance(output, tuple) else output)
    )
    try:
        model(inputs_embeds=embeddings, use_cache=False)
    finally:
        hook.remove()
    return found[0]


def _load(name: str, architecture: Architecture) -> Any:
    """Loads a base model whose only layer returns its inputs."""
    base = architecture.base_class

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        with torch.device("meta"):
            base.__init__(self, config, *args, **kwargs)
        replace_module(self, architecture.layers, nn.ModuleList([LayerStub(architecture.returns_tuple)]))
        self.config = architecture.truncated(0)

    model_class = type(base.__name__, (base,), {"__module__": base.__module__, "__init__": __init__})
    parts = [f"{path}." for path in (architecture.embeddings, *architecture.norms)]
    return load_base_model(model_class, name, architecture, parts)


def load_base_model(model_class: Any, name: str, architecture: Architecture, parts: Sequence[str] = ("",)) -> Any:
    """Loads a base model in float32, in eval mode and without gradients."""
    tensors: dict[str, torch.Tensor] = {}
    weights = ModelWeights(name, architecture, pinned("model", name))
    for part in parts:
        tensors |= weights.tensors(part)
    with without_warnings():
        model, report = model_class.from_pretrained(
            None, config=architecture.config, state_dict=tensors, dtype=torch.float32, output_loading_info=True
        )
    if wrong := sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]])):
        raise CheckpointError(f"The base model {name} lacks weights for {', '.join(wrong[:5])}.")
    layers = [f"{architecture.layers}.{index}." for index in range(architecture.config.num_hidden_layers)]
    computed = (*layers, *(f"{path}." for path in architecture.norms))
    require_all_read([key for key in report["unexpected_keys"] if key.startswith(computed)], f"The base model {name}")
    return model.eval().requires_grad_(False)


def prompted(words: nn.Embedding, input_ids: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
    """Embeds token ids after soft prompts: of shape [batch, pre_seq_len + length, hidden], as `words` are."""
    embeddings = words(input_ids.to(words.weight.device))
    if prompts is None:
        return embeddings
    return torch.cat([prompts.to(embeddings).expand(len(embeddings), -1, -1), embeddings], dim=1)


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
