"""Blocks of any decoder in transformers: a single layer of transformers' own base model, inside that model.

A server computes a block by running the base model with a single layer. Masks, rotary embeddings, sliding windows and
experts are transformers' own, so nothing here depends on a model's family. The client computes what comes before the
first layer and after the last one: hooks pass the received hidden states to the layer, and take its outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dist_eval.errors import CheckpointError
from dist_eval.petals.base_model.architecture import Architecture, replace_module
from dist_eval.petals.base_model.rope import dynamic_ropes, reset_frequencies
from dist_eval.petals.base_model.weights import ModelWeights, require_all_read
from dist_eval.process.memory import return_freed_memory

if TYPE_CHECKING:
    from dist_eval.petals.server.session_cache import BlockCache


class Block(nn.Module):
    """One block: hidden states of shape [batch, length, hidden] → a tuple of its outputs, of the same shape."""

    def __init__(self, model: nn.Module, layers: str, num_heads: int) -> None:
        super().__init__()
        self.model = model
        self.num_heads = num_heads  # read by Petals
        self.kept: BlockCache | None = None  # shapes of its cache; set by servers
        # renamed in transformers 5.24
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._ropes = dynamic_ropes(model)
        self._inputs: torch.Tensor | None = None
        self._outputs: torch.Tensor | None = None
        self.layers = layers
        self.layer.register_forward_pre_hook(self._hand_in, with_kwargs=True)
        self.layer.register_forward_hook(self._take_out)

    @property
    def layer(self) -> nn.Module:
        """The layer itself."""
        return self.model.get_submodule(f"{self.layers}.0")

    def forward(self, hidden_states: torch.Tensor, cache: Any = None) -> tuple[torch.Tensor]:
        """Runs the block, with a cache of transformers if given."""
        self._inputs = hidden_states
        for rope in self._ropes:  # earlier texts are those of others
            reset_frequencies(rope)
        try:
            # the computation before the layer is not used, and may change its inputs in place
            self.model(
                inputs_embeds=torch.zeros_like(hidden_states), use_cache=cache is not None, **{self._cache_name: cache}
            )
            assert self._outputs is not None
            return (self._outputs,)
        finally:
            self._inputs = self._outputs = None

    def _hand_in(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": self._inputs}
        return (self._inputs, *args[1:]), kwargs

    def _take_out(self, _: nn.Module, args: Any, output: Any) -> None:
        self._outputs = output[0] if isinstance(output, tuple) else output


def load_block(architecture: Architecture, weights: ModelWeights, index: int, dtype: torch.dtype) -> Block:
    """Loads a block."""
    model_class = _one_layer_class(architecture, index)
    path = f"{architecture.layers}.{index}."
    tensors = {
        f"{architecture.layers}.0.{key.removeprefix(path)}": tensor for key, tensor in weights.tensors(path).items()
    }
    model, report = model_class.from_pretrained(
        None, config=architecture.config, state_dict=tensors, dtype=dtype, output_loading_info=True
    )
    missing = sorted(key for key in report["missing_keys"] if key.startswith(architecture.layers))
    if missing or report["mismatched_keys"]:
        raise CheckpointError(f"Block {index} of {weights.name} lacks weights: {(missing or report)!s:.200}.")
    require_all_read(report["unexpected_keys"], f"Block {index} of {weights.name}")
    _unmap_unless_all_are(model, tensors.values())
    return Block(model.eval(), architecture.layers, architecture.config.num_attention_heads)


def _unmap_unless_all_are(model: nn.Module, mapped: Iterable[torch.Tensor]) -> None:
    """Copies the weights that are mapped from files, if others were converted, such as experts.

    As long as any weight is mapped, all pages read from its file stay resident in addition to the converted weights.
    """
    places = {tensor.untyped_storage().data_ptr() for tensor in mapped}
    still: list[tuple[nn.Module, str, torch.Tensor]] = []
    others = 0
    for module in model.modules():
        for name, weight in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if weight.untyped_storage().data_ptr() in places:
                still.append((module, name, weight))
            else:
                others += isinstance(weight, nn.Parameter)
    if not others:
        return
    for module, name, weight in still:
        copied = weight.detach().clone()  # assigning `weight.data` would keep the base of a view
        setattr(module, name, nn.Parameter(copied) if isinstance(weight, nn.Parameter) else copied)
    return_freed_memory()  # of parts of experts


def keep_layer(model: nn.Module, architecture: Architecture, layer: Any, index: int) -> None:
    """Removes all layers of a base model except the one at an index."""
    replace_module(model, architecture.layers, nn.ModuleList([layer]))
    for module in layer.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = 0  # its index in a cache of one layer
    for path in architecture.norms:
        replace_module(model, path, nn.Identity())
    replace_module(model, architecture.embeddings, None)
    model.config = architecture.truncated(index)


def _one_layer_class(architecture: Architecture, index: int) -> Any:
    """Returns the base model's class with only one layer."""
    base = architecture.base_class

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        with torch.device("meta"):  # the layer is built with its own index, so all before it are built
            base.__init__(self, config, *args, **kwargs)
        keep_layer(self, architecture, self.get_submodule(architecture.layers)[index], index)

    def get_input_embeddings(self: Any) -> None:
        return None

    # transformers converts experts' weights by the module and name of the class
    names = {"__module__": base.__module__, "__init__": __init__, "get_input_embeddings": get_input_embeddings}
    return type(base.__name__, (base,), names)
