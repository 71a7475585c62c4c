"""Predicts the memory of a server's blocks from the model's config alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dist_eval.errors import ConfigError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.tables import format_count

# Size of a weight of a linear layer in bitsandbytes. NF4: half a byte, an 8-bit scale per 64 weights, and a 32-bit
# scale per 256 of those scales. INT8: a byte, and a 32-bit scale per row
_NF4_BYTES, _INT8_BYTES, _INT8_ROW_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256), 1.0, 4
_EXPERTS_NDIM, _CONVOLUTIONS = 3, (nn.Conv1d, nn.Conv2d)
_WORK_BYTES = (2 << 30) / 14336  # of a backward pass, per number of a hidden state, as Petals estimates it


def block_bytes(architecture: Architecture, dtype: torch.dtype, quantization: str = "") -> list[int]:
    """Predicts the bytes of each block of a model to about a percent, including experts.

    `dtype` is that of the weights on the server. `quantization` is "int8" for linear layers, "nf4" for these and fused
    experts, or "" for none.
    """
    return [_layer_bytes(layer, dtype, quantization) for layer in layers_of(architecture)]


def layers_of(architecture: Architecture) -> list[nn.Module]:
    """Returns the layers of a model without their weights."""
    with torch.device("meta"):
        model = architecture.base_class(architecture.config)
    layers: Any = model.get_submodule(architecture.layers)
    return list(layers)


def fused_experts(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Returns the parameters that contain all experts of a layer: the module of each, and its name there."""
    return [
        (owner, name)
        for owner in module.modules()
        if not isinstance(owner, _CONVOLUTIONS)
        for name, parameter in owner.named_parameters(recurse=False)
        if parameter.ndim == _EXPERTS_NDIM
    ]


def _layer_bytes(layer: nn.Module, dtype: torch.dtype, quantization: str) -> int:
    total, experts = 0.0, fused_experts(layer) if quantization == "nf4" else []
    for module in layer.modules():
        for name, weight in module.named_parameters(recurse=False):
            is_linear = isinstance(module, nn.Linear) and name == "weight"
            if quantization and (is_linear or (module, name) in experts):
                rows = _INT8_ROW_BYTES * len(weight)
                total += _NF4_BYTES * weight.numel() if quantization == "nf4" else _INT8_BYTES * weight.numel() + rows
            else:
                total += weight.numel() * dtype.itemsize
    return round(total)


@dataclass(frozen=True)
class BlockMemory:
    """The memory of a server, in bytes except for `hidden_size`."""

    sizes: Sequence[int]  # of each block of the model
    cache: int  # of sessions and kept prompts, per block
    hidden_size: int
    free: int  # on the device

    def blocks_that_fit(self) -> int:
        """Returns how many blocks fit, whichever they are, with their sessions, prompts and a backward pass.

        If not a single one fits, it raises a `ConfigError`.
        """
        largest = max(self.sizes)
        fit = int((self.free - _WORK_BYTES * self.hidden_size) // (largest + self.cache))
        if fit < 1:
            raise ConfigError(
                f"No block fits into the {format_memory(self.free)} of free memory: each takes up to "
                f"{format_memory(largest)}, its sessions and prompts {format_memory(self.cache)}, and a backward pass "
                f"{format_memory(int(_WORK_BYTES * self.hidden_size))}."
            )
        return min(fit, len(self.sizes))

    def require_room(self, start: int, end: int) -> None:
        """Checks that the weights of some blocks fit; otherwise, the error says how many would."""
        needed = sum(self.sizes[start:end])
        if needed > self.free:
            raise ConfigError(
                f"Blocks {start}:{end} take {format_memory(needed)}, but {format_memory(self.free)} are free: give "
                f"this server {format_count(self.blocks_that_fit(), 'block')} or fewer (--blocks), or other GPUs "
                "(--gpus)."
            )


def format_memory(size: int) -> str:
    """Formats a number of bytes.

    Examples:
        >>> format_memory(3 << 29), format_memory(5 << 20)
        ('1.50 GiB', '5.0 MiB')
    """
    return f"{size / 2**30:.2f} GiB" if size >= 1 << 30 else f"{size / 2**20:.1f} MiB"
