"""Stubs that replace a model's layers, which a swarm computes; the first one exposes its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from dist_eval.petals.base_model.architecture import Architecture, LayerStub, replace_module

See = Callable[[torch.Tensor], object]
"""Receives the inputs of the first layer, of shape [rows, length, hidden]."""

_see: ContextVar[See | None] = ContextVar("see", default=None)


class FirstLayer(LayerStub):
    """Replaces the first layer."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if see := _see.get():
            see(hidden_states)
        return super().forward(hidden_states)


def put_stubs(base: nn.Module, architecture: Architecture) -> None:
    """Replaces the layers of a base model."""
    count, as_tuple = architecture.config.num_hidden_layers, architecture.returns_tuple
    stubs = [LayerStub(as_tuple) for _ in range(1, count)]
    replace_module(base, architecture.layers, nn.ModuleList([FirstLayer(as_tuple), *stubs]))


@contextmanager
def seeing_inputs(see: See) -> Iterator[None]:
    """Passes the inputs of the first layer to a function, within this context and thread."""
    token = _see.set(see)
    try:
        yield
    finally:
        _see.reset(token)
