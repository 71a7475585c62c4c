"""The inputs of a decoder's first layer: embeddings with any scale, norm or position that a family adds.

A base model is built with a single layer that returns its inputs, so its outputs are the inputs of the first layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dist_eval.petals.base_model.architecture import Architecture, LayerStub, replace_module, without_table
from dist_eval.petals.base_model.loading import load_model
from dist_eval.petals.base_model.weights import ModelWeights


def prompted(words: nn.Embedding, input_ids: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
    """Embeds token ids after soft prompts; of shape [batch, pre_seq_len + length, hidden] and the dtype of `words`."""
    return after_prompts(words(input_ids.to(words.weight.device)), prompts)


def after_prompts(embeddings: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
    """Puts soft prompts, of shape [pre_seq_len, hidden], before the embeddings of each text."""
    if prompts is None:
        return embeddings
    return torch.cat([prompts.to(embeddings).expand(len(embeddings), -1, -1), embeddings], dim=1)


def last_layer_outputs(model: nn.Module, architecture: Architecture, embeddings: torch.Tensor) -> torch.Tensor:
    """Runs a base model, one call at a time; returns the outputs of its last layer, before the final norm."""

    def stop(_: nn.Module, args: Any, output: Any) -> None:
        raise _LastLayer(output[0] if isinstance(output, tuple) else output)

    hook = model.get_submodule(architecture.layers)[-1].register_forward_hook(stop)  # type: ignore[index]
    try:
        model(inputs_embeds=embeddings, use_cache=False)
    except _LastLayer as found:
        return found.outputs
    finally:
        hook.remove()
    raise AssertionError("the model did not run its last layer")


class _LastLayer(BaseException):  # which code of a model with `except Exception` does not catch
    """Ends a forward after the last layer: the final norm would take longer than everything before it."""

    def __init__(self, outputs: torch.Tensor) -> None:
        super().__init__()
        self.outputs = outputs


def load_without_layers(name: str, architecture: Architecture, revision: str | None) -> Any:
    """Loads a base model with a single layer that returns its inputs, without token embeddings and final norm."""
    base = architecture.base_class

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        with torch.device("meta"):
            base.__init__(self, config, *args, **kwargs)
        replace_module(self, architecture.layers, nn.ModuleList([LayerStub(architecture.returns_tuple)]))
        without_table(self.get_submodule(architecture.embeddings))
        self.config = architecture.truncated(0)

    model_class = type(base.__name__, (base,), {"__module__": base.__module__, "__init__": __init__})
    weights = ModelWeights(name, architecture, revision)
    tensors = {key: tensor for path in architecture.input_norms for key, tensor in weights.tensors(f"{path}.").items()}
    unused = [f"{architecture.embeddings}.weight", *(f"{architecture.final_norm}.{key}" for key in ("weight", "bias"))]
    return load_model(model_class, architecture, tensors, name, drawn=unused).requires_grad_(False)
