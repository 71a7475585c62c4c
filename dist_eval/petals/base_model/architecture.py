"""Locates a decoder's embeddings, layers and final norm by running transformers' base model with stubs for its layers.

No family is named here: the calls of the base model show the modules before, between and after the layers.
"""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from dist_eval.errors import CheckpointError, one_line

_PROBED = 3


class Architecture:
    """Locates a decoder's embeddings, layers and final norm from its config, without reading weights.

    The `transformers` config may be that of a model that contains the decoder. Raises `CheckpointError` if the layers
    cannot be served one by one; the message gives the reason.

    Attributes:
        config: config of the decoder itself.
        base_class: transformers' class of the model without a head.
        layers: path of the layers in the base model, such as `layers`.
        embeddings: path of the token embeddings, such as `embed_tokens`.
        norms: paths of the other modules with weights outside the layers, which are norms.
        final_norm: path of the norm after the layers, with or without weights; None if there is none.
        has_attention_cache: whether keys and values suffice to continue a text. Models with recurrent layers, or with
            positions added to the embeddings, are only computed in forwards.
        returns_tuple: whether a layer returns a tuple that begins with its outputs.
        has_lookup: whether the embedding of a token depends only on its row of the table (see `embed_rows`).
    """

    def __init__(self, config: Any, name: str = "the model") -> None:
        self.config = config.get_text_config(decoder=True)
        try:
            if getattr(config, "is_encoder_decoder", False):
                raise _Unfit("it has an encoder beside its decoder")
            self._find_parts()
        except _Unfit as error:
            raise CheckpointError(f"{name} cannot be served in blocks: {error}.") from error

    def _find_parts(self) -> None:
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

        kind = type(self.config)
        if kind not in MODEL_MAPPING or kind not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise _Unfit(f"transformers has no language model of type {self.config.model_type!r}")
        base_class: Any = MODEL_MAPPING[kind]
        self.base_class = base_class
        if getattr(self.config, "num_kv_shared_layers", 0):
            raise _Unfit("its layers share keys and values")
        try:
            has_heads = hasattr(self.config, "num_attention_heads")
            with torch.device("meta"):
                model = base_class(self.config)
        except Exception as error:  # any error of the model's own code
            raise _Unfit(f"transformers cannot build it from its config ({one_line(error)})") from error
        if not has_heads:
            raise _Unfit("none of its layers has attention")
        count = getattr(self.config, "num_hidden_layers", None)
        stacks = [path for path, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count]
        embeddings = model.get_input_embeddings()
        paths = [path for path, module in model.named_modules() if module is embeddings]
        if not stacks or not paths:
            raise _Unfit("its base model has no list of all layers")
        self.layers, self.embeddings = min(stacks, key=len), paths[0]
        self.norms: list[str] = []
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name.startswith((f"{self.layers}.", f"{self.embeddings}.")):
                continue
            path = name.rpartition(".")[0]
            if tensor.ndim > 1 or not path or not isinstance(tensor, nn.Parameter):
                raise _Unfit(f"its {name!r}, outside the layers, is neither the embeddings nor a norm")
            if path not in self.norms:
                self.norms.append(path)
        self.has_lookup = _is_lookup(embeddings)
        self.returns_tuple = _returns_tuple(model, self)
        self.has_attention_cache = _has_attention_cache(self.config) and not _adds_positions(model, self)
        self.final_norm = _final_norm(model, self)

    @property
    def input_norms(self) -> list[str]:
        """Paths of the norms before the layers."""
        return [path for path in self.norms if path != self.final_norm]

    def language_model(self) -> Any:
        """Builds transformers' language model on the meta device."""
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(self.config)]
        with torch.device("meta"):
            return model_class(self.config)

    def truncated(self, layer: int) -> Any:
        """Returns the config of a model with only the layer at an index."""
        config = copy.deepcopy(self.config)
        count = config.num_hidden_layers
        for key, value in list(vars(config).items()):
            if isinstance(value, list) and len(value) == count and key.startswith(("layer", "mlp_layer", "no_rope")):
                setattr(config, key, [value[layer]])
        config.num_hidden_layers = 1
        return config


class _Unfit(Exception):
    """The reason why a model cannot be served in blocks."""


def _has_attention_cache(config: Any) -> bool:
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    try:
        kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    except Exception:  # the model has its own kind of cache
        return False
    return kinds <= {DynamicLayer, DynamicSlidingWindowLayer}


def embed_rows(embeddings: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Returns the token embeddings of rows of their table: floats of shape [n, hidden] → the same.

    This includes operations of the module besides the look-up, such as scaling.
    """
    if type(embeddings) is nn.Embedding and embeddings.max_norm is None:
        return rows
    return functional_call(embeddings, {"weight": rows}, (torch.arange(len(rows)),))


@torch.no_grad()
def _is_lookup(embeddings: nn.Module) -> bool:
    if not isinstance(embeddings, nn.Embedding):
        return False
    probed = copy.deepcopy(embeddings)
    without_table(probed).to_empty(device="cpu")
    for buffer in probed.buffers():
        buffer.fill_(1)
    table = torch.linspace(-1, 1, _PROBED * embeddings.embedding_dim).view(_PROBED, -1)
    order = torch.arange(_PROBED).flip(0)
    try:
        found = functional_call(probed, {"weight": table}, (order.view(1, -1),))
        return torch.equal(found[0], embed_rows(probed, table[order]))
    except Exception:  # any error of the model's own code
        return False


def without_table(embeddings: nn.Embedding) -> nn.Embedding:
    """Removes the table of token embeddings, and references to its rows."""
    embeddings.weight = nn.Parameter(embeddings.weight[:0].detach().clone(), requires_grad=False)
    embeddings.padding_idx = None  # matters only to gradients
    return embeddings


class LayerStub(nn.Module):
    """Replaces a layer: its outputs are its inputs, in a tuple if `as_tuple`, as in the layers of some families."""

    def __init__(self, as_tuple: bool = False) -> None:
        super().__init__()
        self.as_tuple = as_tuple

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (hidden_states, None) if self.as_tuple else hidden_states


def _returns_tuple(model: Any, architecture: Architecture) -> bool:
    """Determines whether layers return tuples, and checks that they are a chain."""
    count = len(model.get_submodule(architecture.layers))
    replace_module(model, architecture.embeddings, nn.Identity())
    faults = dict[bool, str]()
    for as_tuple in (False, True):
        replace_module(model, architecture.layers, nn.ModuleList(LayerStub(as_tuple) for _ in range(count)))
        try:
            model.to_empty(device="cpu").eval()
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.data.fill_(1)  # some are not initialized below
            with torch.random.fork_rng(devices=()):
                model.initialize_weights()
            faults[as_tuple] = _chain_fault(model, architecture)
        except Exception as error:  # any error of the model's own code
            faults[as_tuple] = f"its base model does not run with other layers ({one_line(error)})"
        if not faults[as_tuple]:
            return as_tuple
    raise _Unfit(min(faults.values(), key=len))


@torch.no_grad()
def _chain_fault(model: Any, architecture: Architecture) -> str:
    """Describes inputs of a layer other than the outputs of the layer before; empty if there are none."""
    hidden = torch.linspace(-1, 1, 2 * _PROBED * architecture.config.hidden_size).view(2, 1, _PROBED, -1)
    first, second = (_layer_calls(model.get_submodule(architecture.layers), model, text) for text in hidden)
    if any(not torch.equal(call.inputs, before.outputs) for before, call in itertools.pairwise(first)):
        return "something is computed between its layers"
    pairs = [zip(call.others, other.others, strict=True) for call, other in zip(first, second, strict=True)]
    if not all(torch.equal(one, other) for one, other in itertools.chain(*pairs)):
        return "its layers need more than the outputs of the layer before"
    return ""


@torch.no_grad()
def _adds_positions(model: Any, architecture: Architecture) -> bool:
    """Whether the inputs of the first layer depend on a token's position; the layers are stubs."""
    hidden = torch.linspace(-1, 1, _PROBED * architecture.config.hidden_size).view(1, _PROBED, -1)
    layers = model.get_submodule(architecture.layers)
    whole, end = (_layer_calls(layers, model, text.clone())[0].inputs for text in (hidden, hidden[:, 1:]))
    return not torch.equal(whole[:, 1:], end)


@torch.no_grad()
def _final_norm(model: Any, architecture: Architecture) -> str | None:
    """Finds the module that turns the outputs of the last layer into the model's outputs."""
    calls: list[tuple[str, list[torch.Tensor], Any]] = []

    def note(path: str, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append((path, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)], output))

    hooks = [
        module.register_forward_hook(functools.partial(note, path), with_kwargs=True)
        for path, module in model.named_modules()
    ]
    words = torch.linspace(-1, 1, _PROBED * architecture.config.hidden_size).view(1, _PROBED, -1)
    found = model(inputs_embeds=words, use_cache=False).last_hidden_state
    for hook in hooks:
        hook.remove()
    paths = [path for path, *_ in calls]
    last = paths.index(f"{architecture.layers}.{len(model.get_submodule(architecture.layers)) - 1}")
    hidden = calls[last][2][0] if architecture.returns_tuple else calls[last][2]
    if torch.equal(hidden, found):
        return None
    for path, given, output in calls[last + 1 :]:
        is_whole = isinstance(output, torch.Tensor) and torch.equal(output, found)
        if is_whole and len(given) == 1 and torch.equal(given[0], hidden):
            return path
    raise _Unfit("its layers are not followed by a single norm")


class _Call(NamedTuple):
    """The tensors that a layer was called with, and its outputs."""

    inputs: torch.Tensor
    others: list[torch.Tensor]
    outputs: torch.Tensor


def _layer_calls(layers: Any, model: nn.Module, hidden: torch.Tensor) -> list[_Call]:
    """Runs a base model whose layers are stubs with changed outputs, which reveal a chain."""
    calls: list[_Call] = []

    def note(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        inputs = output[0] if isinstance(output, tuple) else output
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf is not inputs]
        calls.append(_Call(inputs, given, 1.5 * inputs))
        return (calls[-1].outputs, *output[1:]) if isinstance(output, tuple) else calls[-1].outputs

    hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    model(inputs_embeds=hidden, use_cache=False)
    for hook in hooks:
        hook.remove()
    return calls


def replace_module(model: nn.Module, path: str, module: nn.Module | None) -> None:
    """Replaces a part of a model."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
