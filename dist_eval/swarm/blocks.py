"""Blocks of any decoder that transformers computes: one layer of transformers' own base model, inside that model.

A server computes a block by running the base model with a single layer. Masks, rotary embeddings, sliding windows and
experts are transformers' own, so nothing here depends on a model's family. What the base model computes before its
first layer and after its last one belongs to the client: the layer is handed the hidden states as they came, and its
outputs are taken from it directly.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import nn

from dist_eval.errors import CheckpointError
from dist_eval.swarm.model_weights import ModelWeights


class Architecture:
    """What of a decoder is where, from its config alone: no weights are read.

    Args:
        config: the `transformers` config of a decoder, or of a model that holds one.
        name: of the model, for messages.

    Attributes:
        config: of the decoder itself.
        base_class: transformers' class of the model without a head.
        layers: path of the layers in the base model, such as `layers`.
        embeddings: path of the token embeddings, such as `embed_tokens`.
        norms: paths of other modules outside the layers that hold weights: norms.

    Raises:
        CheckpointError: its layers cannot be served one by one; the message says why.
    """

    def __init__(self, config: Any, name: str = "the model") -> None:
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

        self.config = config.get_text_config(decoder=True)
        if getattr(config, "is_encoder_decoder", False):
            raise CheckpointError(f"{name} cannot be served in blocks: it has an encoder beside its decoder.")
        if type(self.config) not in MODEL_MAPPING or type(self.config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise CheckpointError(
                f"{name} cannot be served in blocks: for transformers, {self.config.model_type!r} is no language model."
            )
        base_class: Any = MODEL_MAPPING[type(self.config)]
        if getattr(self.config, "num_kv_shared_layers", 0):
            raise CheckpointError(f"{name} cannot be served in blocks: its layers share keys and values.")
        with torch.device("meta"):
            model = base_class(self.config)
        count = self.config.num_hidden_layers
        stacks = [path for path, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count]
        embeddings = model.get_input_embeddings()
        paths = [path for path, module in model.named_modules() if module is embeddings]
        if not stacks or not paths:
            raise CheckpointError(f"{name} cannot be served in blocks: its base model has no list of {count} layers.")
        self.base_class, self.layers, self.embeddings = base_class, min(stacks, key=len), paths[0]
        self.norms = []
        for path, module in model.named_modules():
            own = list(module.parameters(recurse=False))
            if not own or path == self.embeddings or path.startswith(f"{self.layers}."):
                continue
            if any(parameter.ndim > 1 for parameter in own):
                raise CheckpointError(
                    f"{name} cannot be served in blocks: its {path!r}, outside the layers, is neither the embeddings "
                    "nor a norm."
                )
            self.norms.append(path)

    def truncated(self, layer: int) -> Any:
        """Returns the config of a model with one layer, the one at an index."""
        config = copy.deepcopy(self.config)
        count = config.num_hidden_layers
        for key, value in list(vars(config).items()):
            if isinstance(value, list) and len(value) == count and key.startswith(("layer", "mlp_layer", "no_rope")):
                setattr(config, key, [value[layer]])
        config.num_hidden_layers = 1
        return config


class Block(nn.Module):
    """One block: hidden states of shape [batch, length, hidden] → a tuple with those after it, of the same shape.

    Args:
        model: a base model with one layer.
        layers: path of its layers.
        num_heads: of its attention.
    """

    def __init__(self, model: nn.Module, layers: str, num_heads: int) -> None:
        super().__init__()
        self.model = model
        self.num_heads = num_heads  # read by Petals
        # transformers 5.24 has renamed it
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
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
        """Runs the block, with attention to what a cache of transformers holds, if one is given."""
        self._inputs = hidden_states
        try:
            self.model(inputs_embeds=hidden_states, use_cache=cache is not None, **{self._cache_name: cache})
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
    """Loads a block.

    Args:
        architecture: of the model.
        weights: of the model.
        index: of the block.
        dtype: of its weights.

    Raises:
        CheckpointError: weights are missing.
    """
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
    return Block(model.eval(), architecture.layers, architecture.config.num_attention_heads)


def _one_layer_class(architecture: Architecture, index: int) -> Any:
    """Returns the base model's class with one layer left."""
    base = architecture.base_class

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        with torch.device("meta"):  # the layer is built with its own index, so all before it are built
            base.__init__(self, config, *args, **kwargs)
        layer = self.get_submodule(architecture.layers)[index]
        replace_module(self, architecture.layers, nn.ModuleList([layer]))
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = 0  # its place in a cache of one layer
        for path in architecture.norms:
            replace_module(self, path, nn.Identity())
        replace_module(self, architecture.embeddings, None)
        self.config = architecture.truncated(index)

    def get_input_embeddings(self: Any) -> None:
        return None

    # transformers converts experts' weights by the module and name of the class
    names = {"__module__": base.__module__, "__init__": __init__, "get_input_embeddings": get_input_embeddings}
    return type(base.__name__, (base,), names)


def replace_module(model: nn.Module, path: str, module: nn.Module | None) -> None:
    """Replaces a part of a model."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
