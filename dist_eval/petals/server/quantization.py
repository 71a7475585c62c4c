"""Weights in 8 or 4 bits. Petals quantizes linear layers with bitsandbytes, but not fused experts.

transformers keeps the experts of a layer in one three-dimensional parameter. bitsandbytes stores it in NF4, and unpacks
it for each forward of the layer; it does not support this for INT8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dist_eval.errors import ConfigError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.server.block_memory import block_bytes, format_memory, fused_experts, layers_of

NF4_BLOCK = 64


def require_quantizable(model: str, config: Any, dtype: str, quantization: str) -> None:
    """Checks that the weights of a model's blocks can be quantized.

    `quantization` is "none", "int8" or "nf4", and `dtype` that of the other weights, such as "bfloat16". The error says
    why not, and the memory that the blocks would take.
    """
    if quantization != "int8":
        return
    architecture = Architecture(config, model)
    if not any(fused_experts(layer) for layer in layers_of(architecture)):
        return
    sizes = [sum(block_bytes(architecture, getattr(torch, dtype), kind)) for kind in ("", "int8", "nf4")]
    whole, int8, nf4 = map(format_memory, sizes)
    raise ConfigError(
        f"--quantization int8: the experts of {model} are kept in one tensor for each layer, which bitsandbytes does "
        f"not store in INT8. All blocks together would take {int8} instead of {whole}. Use --quantization nf4, which "
        f"includes experts and takes {nf4}."
    )


def quantize_experts(module: nn.Module) -> None:
    """Stores the fused experts of a block in NF4, on their device."""
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    for owner, name in fused_experts(module):
        replace_parameter_4bit(owner, name, compress_statistics=True, quant_type="nf4", blocksize=NF4_BLOCK)


def converting_experts(convert_block: Any, nf4: Any) -> Any:
    """Wraps Petals' `convert_block` to also quantize experts once they are on their device."""

    def convert(block: Any, index: int, config: Any, devices: Any, output: Any, quant_type: Any, **options: Any) -> Any:
        converted = convert_block(block, index, config, devices, output, quant_type, **options)
        if quant_type == nf4:
            quantize_experts(converted)
        return converted

    return convert
