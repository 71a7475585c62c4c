"""What takes the place of a model's layers: the first sends hidden states through the swarm, the rest do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from dist_eval.petals.base_model.architecture import Architecture, LayerStub, replace_module

Through = Callable[[torch.Tensor], torch.Tensor]
"""Inputs of the first layer, of shape [rows, length, hidden], to outputs of the last one."""

_through: ContextVar[Through] = ContextVar("through")


class RemoteLayers(LayerStub):
    """Stands for all layers: hidden states go where the caller of the base model says."""

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().forward(_through.get()(hidden_states))


def put_remote_layers(base: nn.Module, architecture: Architecture) -> None:
    """Replaces the layers of a base model."""
    count, as_tuple = architecture.config.num_hidden_layers, architecture.returns_tuple
    stubs = [LayerStub(as_tuple) for _ in range(1, count)]
    replace_module(base, architecture.layers, nn.ModuleList([RemoteLayers(as_tuple), *stubs]))


@contextmanager
def layers_are(through: Through) -> Iterator[None]:
    """Sends hidden states there, in this thread and context."""
    token = _through.set(through)
    try:
        yield
    finally:
        _through.reset(token)
