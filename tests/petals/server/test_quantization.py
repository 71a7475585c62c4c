"""Blocks with quantized weights: what they compute, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from conftest import SwarmClient
from tiny_models import LAYERS, make_tiny_model, save_tiny_models

from dist_eval.errors import ConfigError
from dist_eval.model.backbone import load_local_backbone
from dist_eval.petals.server.block_memory import fused_experts
from dist_eval.petals.server.quantization import NF4_BLOCK, quantize_experts, require_quantizable


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
@torch.no_grad()
def test_experts_compute_with_their_weights_as_nf4_keeps_them(family: str) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    exact = make_tiny_model(family).base_model.layers[0].mlp
    rounded, quantized = copy.deepcopy(exact), copy.deepcopy(exact)
    found = fused_experts(rounded)
    assert len(found) == 2
    for owner, name in found:
        weights = getattr(owner, name)
        packed, state = functional.quantize_4bit(
            weights, blocksize=NF4_BLOCK, compress_statistics=True, quant_type="nf4"
        )
        weights.copy_(functional.dequantize_4bit(packed, state))
    quantize_experts(quantized)
    assert not fused_experts(quantized)
    hidden = torch.randn(2, 5, make_tiny_model(family).config.hidden_size)
    answers = [
        answer[0] if isinstance(answer := part(hidden), tuple) else answer for part in (exact, rounded, quantized)
    ]
    assert torch.equal(answers[2], answers[1])
    assert not torch.equal(answers[2], answers[0])


def test_experts_in_int8_are_refused_with_the_memory() -> None:
    config = make_tiny_model("mixtral").config
    for quantization in ("none", "nf4"):
        require_quantizable("experts", config, "bfloat16", quantization)
    require_quantizable("llama", make_tiny_model("llama").config, "bfloat16", "int8")
    with pytest.raises(ConfigError, match=r"int8: the experts of experts are .* take .* MiB instead of .* nf4, .* MiB"):
        require_quantizable("experts", config, "bfloat16", "int8")


@pytest.mark.slow
@torch.no_grad()
def test_a_swarm_in_nf4_computes_with_the_weights_that_nf4_keeps(tmp_path: Path, swarm_client: SwarmClient) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    model = save_tiny_models(tmp_path, "mixtral")["mixtral"]
    local = load_local_backbone(str(model))
    linear = [part for part in local.model.modules() if isinstance(part, torch.nn.Linear)]
    for weights in [*(part.weight for part in linear), *(getattr(*place) for place in fused_experts(local.model))]:
        packed, state = functional.quantize_4bit(
            weights.data, blocksize=NF4_BLOCK, compress_statistics=True, quant_type="nf4"
        )
        weights.copy_(functional.dequantize_4bit(packed, state))
    ids = torch.randint(0, 64, (2, 7), generator=torch.Generator().manual_seed(0))
    with swarm_client.start(model, [(0, LAYERS)], "nf4", quant_type="nf4") as swarm:
        backbone = swarm_client.backbone(swarm)
        found = backbone.hidden_states(ids)
        (span,) = backbone.requests.servers.spans()
    assert span.announced.precision == "float32 (nf4)"
    expected = local.hidden_states(ids)
    assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max()))
