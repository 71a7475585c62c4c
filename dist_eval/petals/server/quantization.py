"""Weights in 8 or 4 bits. Petals quantizes linear layers, by bitsandbytes; what it does not know are fused experts.

transformers keeps the experts of a layer in one parameter of three dimensions. bitsandbytes stores these in NF4, and
unpacks those of a layer for each of its forwards; it has no such thing for INT8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dist_eval.errors import ConfigError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.server.block_memory import block_bytes, format_bytes, fused_experts, layers_of

NF4_BLOCK = 64


def require_quantizable(model: str, config: Any, dtype: str, quantization: str) -> None:
    """Checks that the weights of a model's blocks can be quantized.

    Args:
        model: folder or hub name, for the message.
        config: of the model.
        dtype: of the weights that stay as they are, such as "bfloat16".
        quantization: "none", "int8" or "nf4".

    Raises:
        ConfigError: they cannot; the message says why, and what the blocks would take.
    """
    if quantization != "int8":
        return
    architecture = Architecture(config, model)
    if not any(fused_experts(layer) for layer in layers_of(architecture)):
        return
    sizes = [sum(block_bytes(architecture, getattr(torch, dtype), kind)) for kind in ("", "int8", "nf4")]
    whole, int8, nf4 = map(format_bytes, sizes)
    raise ConfigError(
        f"--quantization int8: the experts of {model} are kept in one tensor for each layer, which bitsandbytes does "
        f"not store in INT8. All blocks together would take {int8} instead of {whole}: --quantization nf4, which is "
        f"for experts, too, takes {nf4}."
    )


def quantize_experts(module: nn.Module) -> None:
    """Stores the fused experts of a block in NF4, on the device where they are."""
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    for owner, name in fused_experts(module):
        replace_parameter_4bit(owner, name, compress_statistics=True, quant_type="nf4", blocksize=NF4_BLOCK)


def converting_experts(convert_block: Any, nf4: Any) -> Any:
    """Wraps Petals' `convert_block`, so that it quantizes experts, too, once they are on their device."""

    def convert(block: Any, index: int, config: Any, devices: Any, output: Any, quant_type: Any, **options: Any) -> Any:
        converted = convert_block(block, index, config, devices, output, quant_type, **options)
        if quant_type == nf4:
            quantize_experts(converted)
        return converted

    return convert
