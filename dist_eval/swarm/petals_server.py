"""Petals' server, unmodified, on current packages: what of it computes models is replaced before it is imported.

Petals 2.2 ties itself to the transformers of 2023 in four modules only: the package itself (its models), the reading
of configs, the reading of weights, and LoRA. They are replaced here; its handlers, pools, caches and announcements are
used as they are. Blocks and their attention caches are transformers' own (`blocks.py`).
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from dist_eval.swarm.architecture import Architecture
from dist_eval.swarm.blocks import Block, load_block
from dist_eval.swarm.lora import add_adapter, using_adapter
from dist_eval.swarm.model_weights import ModelWeights
from dist_eval.swarm.petals_version import ANNOUNCED, require_petals

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


async def iterate_inference(
    requested_uids: Sequence[str],
    requested_backends: Sequence[Any],
    active_adapter: str | None,
    input_iterator: AsyncIterator[tuple[Any, dict[str, Any]]],
    cache_handles: Sequence[Sequence[int]],
    *,
    max_length: int,
    prioritizer: Any,
    points: int,
    quant_type: Any,
    args_structure: Any = None,
) -> AsyncIterator[tuple[Sequence[Any], bool]]:
    """Answers the steps of a session; a step's `start_from_position` forgets the tokens from there on.

    Takes and yields what `petals.server.block_functions.iterate_rpc_inference` does (Petals 2.2.0.post1), which knows
    no `start_from_position`; its meaning is that of Petals main (2.3.0.dev2).
    """
    from hivemind.compression.serialization import deserialize_torch_tensor, serialize_torch_tensor
    from hivemind.utils.nested import nested_flatten
    from petals.data_structures import InferenceMetadata
    from petals.server import block_functions
    from petals.utils.convert_block import QuantType
    from petals.utils.misc import is_dummy
    from petals.utils.packaging import unpack_args_kwargs

    if any(backend.cache_shapes is None for backend in requested_backends):
        raise ValueError("recurrent blocks keep no attention cache, so that they have no sessions")
    dtype, position = requested_backends[0].dtype, 0
    (output,) = nested_flatten(requested_backends[-1].outputs_schema)
    is_4bit = quant_type == QuantType.NF4
    merged_tokens = (
        block_functions.MAX_NF4_SHORT_INFERENCE_TOKENS if is_4bit else block_functions.MAX_SHORT_INFERENCE_TOKENS
    )
    async for request, step in input_iterator:
        tensors: Sequence[Any] = [deserialize_torch_tensor(tensor) for tensor in request.tensors]
        if args_structure is not None:
            tensors, _ = unpack_args_kwargs(tensors, args_structure)
        hidden, prompts, hypo_ids, *_ = tensors
        hidden = hidden.to(dtype)
        has_prompts = prompts is not None and not is_dummy(prompts)
        deep = list(prompts.to(dtype).unbind(0)) if has_prompts else [None] * len(requested_backends)
        if len(deep) != len(requested_backends):
            raise ValueError(f"Received {len(deep)} prompts for {len(requested_backends)} blocks")
        start = step.get("start_from_position")
        if start is not None:
            if not isinstance(start, int) or not 0 <= start <= position:
                raise ValueError(f"A session of {position} tokens cannot start from position {start!r}")
            position = start
        end = position + hidden.shape[1]
        if end > max_length:
            raise ValueError(f"Maximum length exceeded: {end} tokens in a session for {max_length}")
        priority = prioritizer.prioritize(
            hidden, hypo_ids, points=points / max(max_length, 1), requested_uids=requested_uids, type="inference"
        )
        if hidden.numel():  # a step without tokens allocates the cache
            infos = [
                InferenceMetadata(uid, position, tuple(handles), active_adapter)
                for uid, handles in zip(requested_uids, cache_handles, strict=True)
            ]
            at_once = len(infos) if hidden.shape[0] * hidden.shape[1] <= merged_tokens else 1
            for first in range(0, len(infos), at_once):
                group = slice(first, first + at_once)
                (hidden,) = await requested_backends[first].inference_pool.submit_task(
                    hidden, hypo_ids, tuple(infos[group]), *deep[group], priority=priority
                )
        answer = serialize_torch_tensor(hidden.to(output.dtype), output.compression, allow_inplace=True)
        yield [answer], not has_prompts
        position = end
