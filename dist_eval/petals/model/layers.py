"""Stubs that replace a model's layers, which a swarm computes; the first one exposes its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from dist_eval.errors import ConfigError
from dist_eval.petals.base_model.architecture import Architecture, LayerStub, replace_module

See = Callable[[torch.Tensor], object]
"""Receives the inputs of the first layer, of shape [rows, length, hidden]."""

_see: ContextVar[See | None] = ContextVar("see", default=None)


_ON_SERVERS = (
    "The layers of a model on a swarm are on its servers: here they cannot be called, hooked, replaced or removed. "
    "`model.inference_session(max_length=N)` has a `step` that runs all of them on hidden states."
)


class AbsentLayer(LayerStub):
    """Replaces a layer."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _see.get() is None:
            raise ConfigError(_ON_SERVERS)
        return super().forward(hidden_states)


class FirstLayer(AbsentLayer):
    """Replaces the first layer."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if see := _see.get():
            see(hidden_states)
        return super().forward(hidden_states)


class AbsentLayers(nn.ModuleList):
    """Replaces the list of layers, or a part of it, which Petals' models could call."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(_ON_SERVERS)


def put_stubs(base: nn.Module, architecture: Architecture) -> None:
    """Replaces the layers of a base model."""
    count, as_tuple = architecture.config.num_hidden_layers, architecture.returns_tuple
    stubs = [AbsentLayer(as_tuple) for _ in range(1, count)]
    replace_module(base, architecture.layers, AbsentLayers([FirstLayer(as_tuple), *stubs]))


def is_overridden(module: nn.Module) -> bool:
    """Whether a program has hooked a module, or replaced the `forward` of this instance."""
    return bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in vars(module)


def require_unchanged(base: nn.Module, architecture: Architecture, count: int) -> None:
    """Refuses to compute a model whose layers a program has hooked, replaced or removed, since servers would not."""
    layers = [*base.get_submodule(architecture.layers).children()]
    are_own = all(isinstance(layer, AbsentLayer) and not is_overridden(layer) for layer in layers)
    if len(layers) != count or not are_own:
        raise ConfigError(_ON_SERVERS)


@contextmanager
def seeing_inputs(see: See) -> Iterator[None]:
    """Passes the inputs of the first layer to a function, within this context and thread."""
    token = _see.set(see)
    try:
        yield
    finally:
        _see.reset(token)
