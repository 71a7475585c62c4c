"""A client, servers and models of Petals for today's transformers, independent of evaluation.

    from dist_eval.petals import AutoDistributedModelForCausalLM, PrivateSwarm

    with PrivateSwarm("models/llama", spans=[(0, 8), (8, 16)]) as swarm:
        model = AutoDistributedModelForCausalLM.from_pretrained("models/llama", initial_peers=swarm.initial_peers)

`base_model` reads config, architecture and weights from disk. `client` joins a swarm and sends requests, `server`
computes blocks, and `model` is transformers' own class with its layers on a swarm. `__main__` is the command
`dist-eval swarm`. The names below are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dist_eval.petals.model.auto import (
        AutoDistributedModel,
        AutoDistributedModelForCausalLM,
        AutoDistributedModelForSequenceClassification,
    )
    from dist_eval.petals.server.private import PrivateSwarm

_MODULES = {
    "AutoDistributedModel": "model.auto",
    "AutoDistributedModelForCausalLM": "model.auto",
    "AutoDistributedModelForSequenceClassification": "model.auto",
    "PrivateSwarm": "server.private",
}

__all__ = [
    "AutoDistributedModel",
    "AutoDistributedModelForCausalLM",
    "AutoDistributedModelForSequenceClassification",
    "PrivateSwarm",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
