"""The output embedding of a language model: hidden states → log-likelihoods of tokens.

It is mapped from the model's safetensors file, so all ranks of a host share one copy in the page cache. The vocabulary
is processed in chunks: a rank holds the logits of one chunk at a time, and the chunk in float32 if the file has another
dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dist_eval.errors import CheckpointError, ModelOutputError
from dist_eval.petals.base_model.architecture import Architecture, replace_module
from dist_eval.petals.base_model.weights import ModelWeights
from dist_eval.revisions import pinned

_CHUNK_BYTES = 1 << 25  # of a chunk of the vocabulary, and of its logits, in float32

_LARGEST_IN_MEMORY = 1 << 30  # bytes; larger weights stay in the file, of which all ranks of a host share one copy


class OutputEmbedding:
    """The output embedding of a language model."""

    def __init__(self, model: str, config: Any) -> None:
        if others := [name for name in config.architectures or () if "Classification" in name or "Answering" in name]:
            raise CheckpointError(f"{model} is not a language model but a {others[0]}.")
        architecture = Architecture(config, model)
        head = LanguageModelHead.find(architecture)
        self._function = head.function
        weights = ModelWeights(model, architecture, pinned("model", model))
        wanted = f"{head.path}.weight"
        name = weights.find(wanted)
        if name is None and getattr(config, "tie_word_embeddings", False):  # transformers ties it if the file lacks it
            name = weights.find(f"{architecture.embeddings}.weight")
        if name is None:
            raise CheckpointError(
                f"{model} has no language-model head: its weights lack {wanted!r}. Name the model that it was made "
                "from, or evaluate a classifier with --checkpoint."
            )
        self._weight: Any = weights.slice(name)
        self.vocab_size, self.hidden_size = self._weight.get_shape()
        bias_name = weights.find(f"{head.path}.bias")
        self._bias = weights.slice(bias_name)[:].to(torch.float32) if bias_name else None

    @property
    def is_linear(self) -> bool:
        """Whether logits are just products of hidden states and rows."""
        return self._bias is None and self._function is None

    def rows(self, tokens: list[int]) -> torch.Tensor:
        """Returns a copy of the rows of some tokens, float32 of shape [tokens, hidden]."""
        return torch.cat([self._weight[token : token + 1].to(torch.float32) for token in tokens])

    def hold_in_memory(self) -> None:
        """Reads the weights in float32 unless they are large, because generation needs all of them for every token."""
        if 4 * self.vocab_size * self.hidden_size <= _LARGEST_IN_MEMORY:
            self._weight = self._weight[:].to(torch.float32)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes the logits of all tokens, float32 of shape [positions, vocabulary], after the final norm."""
        return _finite(torch.cat([logits for _, logits in self._chunks(hidden.to(torch.float32))], dim=1))

    def argmax_tokens(self, hidden: torch.Tensor) -> torch.Tensor:
        """Finds the likeliest token after each position, int64 on the CPU; among equals the one with the lowest id."""
        best = torch.full((len(hidden),), -torch.inf, device=hidden.device)
        best_tokens = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
        for start, logits in self._chunks(hidden.to(torch.float32)):
            best_tokens, best = _argmax_so_far(best_tokens, best, logits, start)
        _finite(best)  # the maximum of a NaN is NaN
        return best_tokens.cpu()

    def log_likelihoods(
        self, hidden: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes the log-likelihoods of n tokens, from floats of shape [positions, hidden] after the final norm.

        `positions` has the row of `hidden` that predicts each token. Returns float64 of shape [n], and whether no other
        token is likelier (or as likely, with a lower id), bool of shape [n]; on the CPU.
        """
        hidden = hidden.to(torch.float32)
        positions, tokens = positions.to(hidden.device), tokens.to(hidden.device)
        total = torch.full((len(hidden),), -torch.inf, dtype=torch.float64, device=hidden.device)
        best = torch.full((len(hidden),), -torch.inf, device=hidden.device)
        best_tokens = torch.zeros(len(hidden), dtype=torch.int64, device=hidden.device)
        own = torch.full((len(tokens),), torch.nan, dtype=torch.float64, device=hidden.device)
        for start, logits in self._chunks(hidden):
            total = torch.logaddexp(total, torch.logsumexp(logits, dim=1).to(torch.float64))
            best_tokens, best = _argmax_so_far(best_tokens, best, logits, start)
            here = ((tokens >= start) & (tokens < start + logits.shape[1])).nonzero().squeeze(1)
            own[here] = logits[positions[here], tokens[here] - start].to(torch.float64)
        return (own - total[positions]).cpu(), (best_tokens[positions] == tokens).cpu()

    def _chunks(self, hidden: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields the logits of one chunk of the vocabulary after another, with the id of the chunk's first token."""
        step = max(1, _CHUNK_BYTES // (4 * max(self.hidden_size, len(hidden))))
        for start in range(0, self.vocab_size, step):
            logits = hidden @ self._weight[start : start + step].to(hidden).T
            if self._bias is not None:
                logits += self._bias[start : start + step].to(hidden)
            yield start, logits if self._function is None else self._function(logits)


def _finite(logits: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(logits).all():
        raise ModelOutputError("The model answered with logits that are not finite.")
    return logits


def _argmax_so_far(
    best_tokens: torch.Tensor, best: torch.Tensor, logits: torch.Tensor, start: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Updates the likeliest tokens and their logits with a chunk of the vocabulary."""
    largest, where = logits.max(dim=1)
    return torch.where(largest > best, where + start, best_tokens), torch.maximum(best, largest)


@dataclass(frozen=True)
class LanguageModelHead:
    """Computes a language model's logits from hidden states after the final norm."""

    path: str  # of the output embedding in the language model
    # applied to the products of hidden states and output embedding, floats of shape [positions, tokens]; or None
    function: Callable[[torch.Tensor], torch.Tensor] | None

    @classmethod
    def find(cls, architecture: Architecture) -> LanguageModelHead:
        from transformers.modeling_outputs import MoeModelOutputWithPast

        class Output(MoeModelOutputWithPast):
            def __getattr__(self, name: str) -> None:
                """Returns None for outputs that only some models have."""

        class Given(nn.Module):
            def forward(self, *args: Any, inputs_embeds: torch.Tensor, **kwargs: Any) -> Any:
                return Output(last_hidden_state=inputs_embeds)

        model = architecture.language_model()
        head = model.get_output_embeddings()
        path = next(path for path, module in model.named_modules() if module is head)
        replace_module(model, path, nn.Identity())
        bases = [path for path, module in model.named_modules() if type(module) is architecture.base_class]
        if not bases:
            raise CheckpointError(
                f"The logits of a {architecture.config.model_type!r} are not computed from its base model's outputs."
            )
        replace_module(model, bases[0], Given())

        def function(products: torch.Tensor) -> torch.Tensor:
            return model(inputs_embeds=products.unsqueeze(0), use_cache=False).logits[0]

        products = torch.linspace(-100, 100, 64).view(2, 32)
        return cls(path, None if torch.equal(function(products), products) else function)
