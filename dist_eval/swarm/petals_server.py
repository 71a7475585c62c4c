"""Petals' server on current packages: what of it computes models is replaced before it is imported.

Petals 2.2 ties itself to the transformers of 2023 in four modules only: the package itself (its models), the reading
of configs, the reading of weights, and LoRA. They are replaced here, and so are the tasks that a request is made
of (`server_tasks.py`); its handlers, pools, caches and announcements are used as they are. Blocks and their attention
caches are transformers' own (`blocks.py`).
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from dist_eval.swarm.architecture import Architecture
from dist_eval.swarm.blocks import Block, load_block
from dist_eval.swarm.lora import add_adapter, using_adapter
from dist_eval.swarm.model_weights import ModelWeights
from dist_eval.swarm.petals_version import ANNOUNCED, require_petals
from dist_eval.swarm.server_tasks import iterate_inference, merge_pools, run_backward, run_forward

_NO_CACHE = (1, 1)


def import_server() -> Any:
    """Imports Petals' server with what computes models replaced; nothing of Petals may be imported before."""
    if "petals.cli.run_server" in sys.modules:
        return sys.modules["petals.cli.run_server"]
    require_petals()
    spec: Any = importlib.util.find_spec("petals")
    package = types.ModuleType("petals")
    package.__path__ = list(spec.submodule_search_locations or ())
    package.__spec__, package.__version__ = spec, ANNOUNCED  # type: ignore[attr-defined]
    sys.modules["petals"] = package
    # `petals.utils` imports the models, too, and nothing reads what it exports
    utils = _module("petals.utils")
    utils.__path__ = [str(Path(path) / "utils") for path in package.__path__]
    _module("petals.utils.auto_config", AutoDistributedConfig=_Config)
    _module("petals.utils.version", get_compatible_model_repo=lambda name: name, validate_version=lambda: None)
    _module(
        "petals.utils.peft",
        using_adapter=using_adapter,
        create_lora_adapter=lambda block, quant_type: None,
        load_peft=lambda name, **_: (None, None),
        add_adapter_to_block=_add_adapter,
    )
    _module("petals.server.from_pretrained", load_pretrained_block=_load_pretrained_block)
    from petals.cli import run_server
    from petals.server import handler, server

    server.TransformerBackend = _backend_class()
    server.merge_inference_pools_inplace = merge_pools
    handler.run_rpc_forward, handler.run_rpc_backward = run_forward, run_backward
    handler.iterate_rpc_inference = iterate_inference
    return run_server


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    return module


class _Config:
    @staticmethod
    def from_pretrained(name: str, **_: Any) -> Any:
        config = _architecture(name).config
        heads = config.num_attention_heads
        config.num_key_value_groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
        config.attn_class = Block  # Petals counts the heads of its instances
        return config


@functools.cache
def _architecture(name: str) -> Architecture:
    from transformers import AutoConfig

    return Architecture(AutoConfig.from_pretrained(name, trust_remote_code=False), name)


@functools.cache
def _weights(name: str) -> ModelWeights:
    return ModelWeights(name, _architecture(name))


def _load_pretrained_block(name: str, index: int, *, torch_dtype: torch.dtype, **_: Any) -> Block:
    return load_block(_architecture(name), _weights(name), index, torch_dtype)


def _add_adapter(block: Any, index: int, name: str, *_: Any) -> None:
    (shard,) = block.module_shards
    add_adapter(shard.layer, shard.layers, index, name)


class SessionLayer(DynamicLayer):
    """A layer's keys and values in memory that was allocated for a whole session.

    Args:
        keys: of shape [batch, heads, max_length, key_width].
        values: of shape [batch, heads, max_length, value_width].
        length: tokens that they hold so far.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keys, self._values, self._length = keys, values, length

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds keys and values, of shape [batch, heads, n, width], and returns all so far."""
        start, self._length = self._length, self._length + key_states.shape[-2]
        self._keys[..., start : self._length, :] = key_states
        self._values[..., start : self._length, :] = value_states
        return self._keys[..., : self._length, :], self._values[..., : self._length, :]

    def get_seq_length(self) -> int:
        """Returns how many tokens it holds."""
        return self._length


def _backend_class() -> Any:
    from hivemind.utils.tensor_descr import TensorDescriptor
    from petals.server.backend import TransformerBackend

    class BlockBackend(TransformerBackend):  # type: ignore[misc]
        """A block with its pools of tasks, whose attention caches have the shapes that the block itself makes."""

        @functools.cached_property
        def cache_shapes(self) -> list[tuple[int, int]] | None:
            """Heads and width of the keys and of the values of a token; None for a recurrent block."""
            layer: Any = DynamicLayer()
            token = torch.zeros(1, 1, self.args_schema[0].shape[-1], dtype=self.dtype, device=self.module.devices[0])
            try:
                with torch.inference_mode():
                    self.module(token, cache=Cache(layers=[layer]))
                return [(kept.shape[1], kept.shape[3]) for kept in (layer.keys, layer.values)]
            except (AttributeError, ValueError):
                return None

        def get_inference_cache_descriptors(self, batch_size: int, max_length: int) -> Sequence[Any]:
            shapes = self.cache_shapes or [_NO_CACHE]  # Petals counts what a token takes, and divides by it
            device = self.module.devices[0]
            return [
                TensorDescriptor((batch_size, heads, max_length, width), dtype=self.dtype, device=device)
                for heads, width in shapes
            ]

        @torch.inference_mode()
        def inference_step(self, hidden_states: torch.Tensor, hypo_ids: torch.Tensor, info: Any) -> tuple[torch.Tensor]:
            with self.memory_cache.use_cache(*info.cache_handles) as kept, using_adapter(info.active_adapter):
                self._reorder_cache_inplace(kept, hypo_ids)
                keys, values = kept
                cache = Cache(layers=[SessionLayer(keys, values, info.prefix_length)])
                most = self._estimate_max_chunk_length(hidden_states, info)
                outputs = [self.module(part, cache=cache)[0] for part in hidden_states.split(most, dim=1)]
                return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1),)

    return BlockBackend
