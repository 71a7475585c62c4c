"""LoRA adapters on a server's blocks: read from PEFT's folders (safetensors only), and applied by hooks on request.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021), as `peft.tuners.lora` computes it:
outputs + (inputs @ A.T @ B.T) * alpha / r, in float32 whatever the dtype of the block and of the adapter's file.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from dist_eval.errors import CheckpointError, one_line
from dist_eval.petals.base_model.weights import file_of
from dist_eval.process.parsing import read_json

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Keys of a config that are read below, or that only describe where an adapter applies and how it was trained. Others
# belong to variants that compute something else
_KEYS = frozenset(
    (
        *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias", "init_lora_weights", "peft_type"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "ensure_weight_tying"),
        *("base_model_name_or_path", "revision", "auto_mapping", "task_type", "peft_version", "inference_mode"),
        *("lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size"),
        *("megatron_config", "megatron_core", "runtime_config"),
    )
)
# Initializations that leave the model's weights unchanged; others, such as PiSSA's, are subtracted from them
_INITIAL = (True, False, None, "gaussian", "eva", "orthogonal")

_SCALES = ("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")

_active: str | None = None  # adapter of the running block; a server runs one at a time


@contextlib.contextmanager
def using_adapter(name: str | None) -> Iterator[None]:
    """Applies an adapter to the blocks within this context, or none if it is None or empty."""
    global _active
    before, _active = _active, name or None
    try:
        yield
    finally:
        _active = before


@functools.lru_cache(maxsize=8)
def read_adapter(name: str) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Reads an adapter: the scale of each pair of tensors, by the name of A, and all tensors, by name in the file."""
    from safetensors.torch import load_file

    config_file, weights_file = (file_of(name, file) for file in (_CONFIG, _WEIGHTS))
    if config_file is None or weights_file is None:
        raise CheckpointError(f"The adapter {name} lacks {_WEIGHTS if config_file else _CONFIG}.")
    try:
        config = dict(read_json(config_file))
        tensors = load_file(weights_file)
    except Exception as error:  # OSError, ValueError, TypeError and SafetensorError
        raise CheckpointError(f"The adapter {name} cannot be read: {one_line(error)}") from error
    used = [key for key, value in config.items() if value and key not in _KEYS]
    used += ["bias"] * (config.get("bias", "none") != "none")
    used += ["init_lora_weights"] * (config.get("init_lora_weights") not in _INITIAL)
    if config.get("peft_type") != "LORA" or used:
        raise CheckpointError(
            f"The adapter {name} is not a plain LoRA adapter: {_CONFIG} has "
            f"{', '.join(f'{key}: {config[key]}' for key in used) or 'peft_type: ' + str(config.get('peft_type'))}."
        )
    pairs = {key: key.replace(".lora_A.", ".lora_B.") for key in tensors if key.endswith(".lora_A.weight")}
    if others := sorted(set(tensors) ^ {*pairs, *pairs.values()}):
        raise CheckpointError(f"The adapter {name} is not a plain LoRA adapter: {others[0]} is not part of a pair.")
    scales = {}
    for key in pairs:
        try:
            rank, alpha = (_setting(config, *fields, key) for fields in _SCALES)
        except (re.error, TypeError) as error:
            raise CheckpointError(f"{config_file} has a pattern that cannot be read: {one_line(error)}") from error
        if not (isinstance(rank, int) and rank > 0 and isinstance(alpha, int | float)):
            raise CheckpointError(
                f"{config_file} should have numbers as r and lora_alpha, not {rank!r:.80}, {alpha!r:.80}."
            )
        if len(tensors[key]) != rank:
            found = f"{key} of rank {len(tensors[key])}"
            raise CheckpointError(f"The adapter {name} has {found}, but {_CONFIG} says {rank}.")
        scales[key] = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return scales, tensors


def _setting(config: dict[str, Any], field: str, pattern_field: str, key: str) -> Any:
    """Returns a field of an adapter's config, or its value for a layer, as `get_pattern_key` of peft does."""
    path = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
    patterns = config.get(pattern_field) or {}
    return next((patterns[one] for one in patterns if re.match(rf"(.*\.)?({one})$", path)), config.get(field))


def add_adapter(layer: nn.Module, layers: str, index: int, name: str) -> None:
    """Adds an adapter to a layer, for requests that use it."""
    scales, tensors = read_adapter(name)
    for key in tensors:
        found = _place(key, layers)
        if found is None and ".lora_A." in key:
            raise CheckpointError(f"The adapter {name} changes {key}, which is in none of the model's blocks.")
        if found and int(found[1]) == index:
            down, up = tensors[key], tensors[key.replace(".lora_A.", ".lora_B.")]
            try:
                linear: Any = layer.get_submodule(found[2])
                fits = down.shape[1] == linear.in_features and up.shape[0] == linear.out_features
            except AttributeError:
                fits = False
            if not fits:
                raise CheckpointError(f"The adapter {name} does not fit block {index}: {key}.")
            down, up = (half.to(linear.weight.device, torch.float32) for half in (down, up))
            linear.register_forward_hook(functools.partial(_add, name, scales[key], down, up))


def adapter_bytes(name: str, layers: str, index: int) -> int:
    """Returns the bytes of an adapter in a block."""
    scales, tensors = read_adapter(name)
    places = ((key, _place(key, layers)) for key in scales)
    pairs = [(key, key.replace(".lora_A.", ".lora_B.")) for key, place in places if place and int(place[1]) == index]
    return sum(tensors[key].numel() * torch.float32.itemsize for pair in pairs for key in pair)


def _place(key: str, layers: str) -> re.Match[str] | None:
    """Finds the block (group 1) of a tensor, and the path of its linear layer there (group 2)."""
    return re.fullmatch(rf"(?:.*\.)?{re.escape(layers)}\.(\d+)\.(.+)\.lora_A\.weight", key)


def _add(
    name: str, scale: float, down: torch.Tensor, up: torch.Tensor, _: Any, args: tuple[torch.Tensor], output: Any
) -> Any:
    if _active != name:
        return output
    return (output + args[0].to(down.dtype) @ down.T @ up.T * scale).to(output.dtype)
