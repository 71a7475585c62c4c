"""Petals' server on current packages: the parts that compute models are replaced before it is imported.

Petals 2.2 depends on the transformers of 2023 in only four modules: the package itself (its models), the readers of
configs and of weights, and LoRA. They are replaced here, and so are the tasks of requests (`server_tasks.py`), the
transfer of their tensors (`task_pool.py`), and the memory of blocks (`block_memory.py`) and sessions
(`session_cache.py`, `session_memory.py`). A guard precedes its handlers (`handler.py`); its announcements are
unchanged. Blocks and their attention caches are transformers' own (`blocks.py`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers.cache_utils import Cache

from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.config import default_cache_tokens
from dist_eval.petals.base_model.weights import ModelWeights
from dist_eval.petals.client.deep_prompts import KEPT_TOKENS
from dist_eval.petals.client.petals_version import ANNOUNCED, require_petals
from dist_eval.petals.server.block_memory import BlockMemory, block_bytes, format_memory
from dist_eval.petals.server.block_runner import merge_pools
from dist_eval.petals.server.blocks import Block, load_block
from dist_eval.petals.server.embedding import Embedder, table_bytes
from dist_eval.petals.server.handler import handler_class, log_in_one_line, request_memory, rolls_back
from dist_eval.petals.server.lora import adapter_bytes, add_adapter, using_adapter
from dist_eval.petals.server.private import LOADED
from dist_eval.petals.server.quantization import converting_experts
from dist_eval.petals.server.session_cache import NO_CACHE, BlockCache, SessionLayer, block_caches
from dist_eval.petals.server.session_memory import session_memory_class
from dist_eval.petals.server.shared_memory import SharedMemory
from dist_eval.process.memory import keep_freed_memory
from dist_eval.process.memory_limits import available_memory

_UNLIMITED = 1 << 31


def import_server() -> Any:
    """Imports Petals' server with replaced models; nothing of Petals may be imported before."""
    if "petals.cli.run_server" in sys.modules:
        return sys.modules["petals.cli.run_server"]
    require_petals()
    spec: Any = importlib.util.find_spec("petals")
    package = types.ModuleType("petals")
    package.__path__ = list(spec.submodule_search_locations or ())
    package.__spec__, package.__version__ = spec, ANNOUNCED  # type: ignore[attr-defined]
    sys.modules["petals"] = package
    # `petals.utils` also imports the models, and its exports are not used
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
    from petals.server import server

    run_server.Server = _server_class()
    server.TransformerBackend = _backend_class()
    server.TransformerConnectionHandler = handler_class()
    server.MemoryCache = session_memory_class()
    log_in_one_line()
    server.convert_block = converting_experts(server.convert_block, server.QuantType.NF4)
    # it starts a libp2p daemon that tells others whether they can be reached, which our servers do not ask
    server.ReachabilityProtocol.attach_to_dht = lambda dht: None
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


@functools.cache
def _caches(name: str, revision: str | None) -> list[BlockCache | None]:
    return block_caches(_architecture(name, revision))


def _load_pretrained_block(
    name: str, index: int, *, torch_dtype: torch.dtype, revision: str | None = None, **_: Any
) -> Block:
    block = load_block(_architecture(name, revision), _weights(name, revision), index, torch_dtype)
    block.kept = _caches(name, revision)[index]
    return block


def _add_adapter(block: Any, index: int, name: str, *_: Any) -> None:
    (shard,) = block.module_shards
    add_adapter(shard.layer, shard.layers, index, name)


def _server_class() -> Any:
    from petals.server import server

    class Announcer(server.ModuleAnnouncerThread):  # type: ignore[misc]
        """Announces a server's blocks, and how many tokens of sessions it has room for."""

        cache_bytes_per_token = 1  # of a block of this server

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.bytes_per_token = self.cache_bytes_per_token  # Petals counts half of the real size

    server.ModuleAnnouncerThread = Announcer

    class BlockServer(server.Server):  # type: ignore[misc]
        """Petals' server, which predicts the memory of its blocks and their sessions, and reports the actual one.

        Sessions may be as long as the model's maximum position. Unlike in Petals, `attn_cache_tokens` are actual tokens
        in the shapes in which the blocks keep them.
        """

        def __init__(
            self,
            *,
            converted_model_name_or_path: str,
            revision: str | None = None,
            attn_cache_tokens: int | None = None,
            inference_max_length: int | None = None,
            **kwargs: Any,
        ) -> None:
            config = _Config.from_pretrained(converted_model_name_or_path, revision=revision)
            self._cache_tokens = default_cache_tokens(config) if attn_cache_tokens is None else attn_cache_tokens
            super().__init__(
                converted_model_name_or_path=converted_model_name_or_path,
                revision=revision,
                attn_cache_tokens=self._cache_tokens,
                inference_max_length=inference_max_length or _positions(config),
                **kwargs,
            )

        def _choose_num_blocks(self) -> int:
            return self._memory().blocks_that_fit()

        def _choose_blocks(self) -> Sequence[int]:
            chosen: Sequence[int] = super()._choose_blocks()
            memory, device = self._memory(), self.device
            start, end = chosen[0], chosen[-1] + 1
            if device.type == "cuda":  # on a CPU, weights may be mapped and exceed the memory
                memory.require_room(start, end)
            if self._quantization:
                importlib.import_module("bitsandbytes")  # takes memory that does not belong to blocks
            before = _taken_bytes(device)
            caches = self._cache_bytes_per_token()[start:end]
            self.attn_cache_bytes = self._cache_tokens * sum(caches)
            # rounded up, so that a session of the announced size fits
            Announcer.cache_bytes_per_token = per_token = -(-sum(caches) // len(caches))

            def merge_and_say(backends: Any) -> None:
                merge_pools(backends, self._shared_memory(backends))
                if start == 0:
                    server.TransformerConnectionHandler.embedder = self._embedder()
                keep_freed_memory()  # before the handlers are forked
                for backend in backends.values():
                    backend.cache_bytes_per_token = {device: per_token}  # `rpc_info` divides by it
                kind = " and ".join(filter(None, (self.server_info.torch_dtype, self._quantization)))
                taken, estimate = _taken_bytes(device) - before, sum(memory.sizes[start:end])
                print(
                    f"{LOADED}{start}:{end} in {kind}: {format_memory(taken)} (estimated: {format_memory(estimate)}); "
                    f"sessions may take up to {format_memory(self.attn_cache_bytes)} more",
                    flush=True,
                )

            server.merge_inference_pools_inplace = merge_and_say
            return chosen

        def _shared_memory(self, backends: Any) -> SharedMemory:
            backend = next(iter(backends.values()))
            # the largest hidden states of a request in float32, and the same again for prompts or a gradient
            slot = 2 * 4 * backend.config.hidden_size * backend.forward_pool.max_batch_size
            return SharedMemory(slot, request_memory(), self.num_handlers)

        def _embedder(self) -> Embedder | None:
            architecture = _architecture(self.converted_model_name_or_path, self.revision)
            weights = _weights(self.converted_model_name_or_path, self.revision)
            return Embedder(architecture, weights, self.revision) if architecture.has_lookup else None

        def _cache_bytes_per_token(self) -> list[int]:
            caches = _caches(self.converted_model_name_or_path, self.revision)
            return [(cache or NO_CACHE).token_numbers * self.torch_dtype.itemsize for cache in caches]

        @property
        def _quantization(self) -> str:
            name: str = self.quant_type.name.lower()
            return "" if name == "none" else name

        def _memory(self) -> BlockMemory:
            architecture = _architecture(self.converted_model_name_or_path, self.revision)
            sizes = block_bytes(architecture, self.torch_dtype, self._quantization)
            for index in range(len(sizes)):
                sizes[index] += sum(adapter_bytes(name, architecture.layers, index) for name in self.adapters)
            if self.device.type == "cpu" and architecture.has_lookup:
                weights = _weights(self.converted_model_name_or_path, self.revision)
                sizes[0] += table_bytes(architecture, weights)
            width = self.block_config.hidden_size
            cache = self._cache_tokens * max(self._cache_bytes_per_token())
            prompts = KEPT_TOKENS * width * self.torch_dtype.itemsize
            return BlockMemory(sizes, cache + prompts, width, _free_bytes(self.device))

    return BlockServer


def _positions(config: Any) -> int:
    """Returns the most tokens of a text."""
    positions = getattr(config, "max_position_embeddings", None) or 0
    return positions if positions > 0 else _UNLIMITED  # some families say -1, or nothing


def _free_bytes(device: torch.device) -> int:
    """Returns the free memory of a device in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()


def _taken_bytes(device: torch.device) -> int:
    """Returns the bytes that this process uses on a device; on a CPU including pages mapped from files and read."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def _backend_class() -> Any:
    from hivemind.utils.tensor_descr import TensorDescriptor
    from petals.server.backend import TransformerBackend

    class BlockBackend(TransformerBackend):  # type: ignore[misc]
        """A block with its pools of tasks, whose attention caches have the block's own shapes."""

        @property
        def kept(self) -> BlockCache | None:
            """The shapes of the block's cache; None for a recurrent block."""
            (shard,) = self.module.module_shards
            return shard.kept

        def get_inference_cache_descriptors(self, batch_size: int, max_length: int) -> Sequence[Any]:
            device = self.module.devices[0]
            return [
                TensorDescriptor(shape, dtype=self.dtype, device=device)
                for shape in (self.kept or NO_CACHE).shapes(batch_size, max_length, rolls_back=rolls_back.get())
            ]

        @torch.inference_mode()
        def inference_step(self, hidden_states: torch.Tensor, hypo_ids: torch.Tensor, info: Any) -> tuple[torch.Tensor]:
            with self.memory_cache.use_cache(*info.cache_handles) as kept, using_adapter(info.active_adapter):
                self._reorder_cache_inplace(kept, hypo_ids)
                keys, values = kept
                window = (self.kept or NO_CACHE).window
                cache = Cache(layers=[SessionLayer(keys, values, info.prefix_length, window)])
                most = self._estimate_max_chunk_length(hidden_states, info)
                outputs = [self.module(part, cache=cache)[0] for part in hidden_states.split(most, dim=1)]
                return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1),)

    return BlockBackend
