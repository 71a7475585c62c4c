"""Petals' server on current packages: what of it computes models is replaced before it is imported.

Petals 2.2 ties itself to the transformers of 2023 in four modules only: the package itself (its models), the reading
of configs, the reading of weights, and LoRA. They are replaced here, and so are the tasks that a request is made
of (`server_tasks.py`) and what it knows of the memory that blocks take (`block_memory.py`); its handlers, pools, caches
and announcements are used as they are. Blocks and their attention caches are transformers' own (`blocks.py`).
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers.cache_utils import Cache, DynamicLayer

from dist_eval.swarm.architecture import Architecture
from dist_eval.swarm.block_memory import BlockMemory, block_bytes, format_bytes
from dist_eval.swarm.blocks import Block, load_block
from dist_eval.swarm.lora import adapter_bytes, add_adapter, using_adapter
from dist_eval.swarm.model_weights import ModelWeights
from dist_eval.swarm.petals_version import ANNOUNCED, require_petals
from dist_eval.swarm.private import LOADED
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

    run_server.Server = _server_class()
    server.TransformerBackend = _backend_class()
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
    def from_pretrained(name: str, *, revision: str | None = None, **_: Any) -> Any:
        config = _architecture(name, revision).config
        heads = config.num_attention_heads
        config.num_key_value_groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
        config.attn_class = Block  # Petals counts the heads of its instances
        return config


@functools.cache
def _architecture(name: str, revision: str | None) -> Architecture:
    from transformers import AutoConfig

    return Architecture(AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=False), name)


@functools.cache
def _weights(name: str, revision: str | None) -> ModelWeights:
    return ModelWeights(name, _architecture(name, revision), revision)


def _load_pretrained_block(
    name: str, index: int, *, torch_dtype: torch.dtype, revision: str | None = None, **_: Any
) -> Block:
    return load_block(_architecture(name, revision), _weights(name, revision), index, torch_dtype)


def _add_adapter(block: Any, index: int, name: str, *_: Any) -> None:
    (shard,) = block.module_shards
    add_adapter(shard.layer, shard.layers, index, name)


def _server_class() -> Any:
    from petals.server import server

    class BlockServer(server.Server):  # type: ignore[misc]
        """Petals' server, which knows what its blocks will take of memory, and says what they have taken."""

        def _choose_num_blocks(self) -> int:
            return self._memory().blocks_that_fit()

        def _choose_blocks(self) -> Sequence[int]:
            chosen: Sequence[int] = super()._choose_blocks()
            memory, device = self._memory(), self.device
            start, end = chosen[0], chosen[-1] + 1
            if device.type == "cuda":  # on a CPU weights may be mapped, and more than its memory
                memory.require_room(start, end)
            before = _taken_bytes(device)

            def merge_and_say(backends: Any) -> None:
                merge_pools(backends)
                kind = " and ".join(filter(None, (self.server_info.torch_dtype, self._quantization)))
                taken, estimate = _taken_bytes(device) - before, sum(memory.sizes[start:end])
                print(
                    f"{LOADED}{start}:{end} in {kind}: {format_bytes(taken)} (estimated: {format_bytes(estimate)}); "
                    f"sessions may take up to {format_bytes(self.attn_cache_bytes)} more",
                    flush=True,
                )

            server.merge_inference_pools_inplace = merge_and_say
            return chosen

        @property
        def _quantization(self) -> str:
            name: str = self.quant_type.name.lower()
            return "" if name == "none" else name

        def _memory(self) -> BlockMemory:
            architecture = _architecture(self.converted_model_name_or_path, self.revision)
            sizes = block_bytes(architecture, self.torch_dtype, self._quantization)
            for index in range(len(sizes)):
                sizes[index] += sum(adapter_bytes(name, architecture.layers, index) for name in self.adapters)
            return BlockMemory(
                sizes, self._cache_bytes_per_block, self.block_config.hidden_size, _free_bytes(self.device)
            )

    return BlockServer


def _free_bytes(device: torch.device) -> int:
    """Returns how much memory of a device nobody uses."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _taken_bytes(device: torch.device) -> int:
    """Returns what this process takes of a device's memory; on a CPU with what is mapped from files and was read."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


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
