"""How much memory blocks will take; that of each family is compared with its loaded blocks in test_blocks.py."""

from __future__ import annotations

import pytest
import torch
from tiny_models import make_tiny_model

from dist_eval.errors import ConfigError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.server.block_memory import BlockMemory, block_bytes

GIB = 1 << 30


@pytest.mark.parametrize(("quantization", "per_weight", "per_row"), [("nf4", 0.5 + 65 / 4096, 0), ("int8", 1, 4)])
def test_linear_layers_are_quantized_and_in_nf4_experts(quantization: str, per_weight: float, per_row: int) -> None:
    model = make_tiny_model("qwen3_moe")
    architecture = Architecture(model.config)
    layer = model.base_model.layers[0]
    linear = [module for module in layer.modules() if isinstance(module, torch.nn.Linear)]
    weights, rows = sum(part.weight.numel() for part in linear), sum(part.out_features for part in linear)
    rest = sum(parameter.numel() for parameter in layer.parameters()) - weights
    experts = sum(parameter.numel() for parameter in layer.parameters() if parameter.ndim == 3)
    assert rest > experts > weights, "the experts are no linear layers"
    if quantization == "nf4":
        weights, rest = weights + experts, rest - experts
    found = block_bytes(architecture, torch.bfloat16, quantization)
    assert found[0] == pytest.approx(per_weight * weights + per_row * rows + 2 * rest, abs=1)


def test_blocks_fit_beside_the_caches_of_sessions_and_a_backward_pass() -> None:
    work = 2 * GIB * 4096 // 14336 + 1
    sizes = [GIB, 2 * GIB, GIB]
    assert BlockMemory(sizes, GIB, 4096, free=6 * GIB + work).blocks_that_fit() == 2
    assert BlockMemory(sizes, GIB, 4096, free=6 * GIB).blocks_that_fit() == 1
    assert BlockMemory(sizes, GIB, 4096, free=60 * GIB).blocks_that_fit() == 3
    with pytest.raises(ConfigError, match=r"No block fits into the 3\.00 GiB .* up to 2\.00 GiB, .* pass 585\.1 MiB"):
        BlockMemory(sizes, GIB, 4096, free=3 * GIB).blocks_that_fit()


def test_blocks_without_room_are_refused_with_how_many_fit() -> None:
    memory = BlockMemory([4 * GIB] * 8, GIB, 4096, free=20 * GIB)
    memory.require_room(2, 7)
    with pytest.raises(ConfigError, match=r"Blocks 2:8 take 24\.00 GiB, but 20\.00 GiB are free: .* 3 blocks or fewer"):
        memory.require_room(2, 8)
