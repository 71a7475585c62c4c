"""LoRA adapters compute what peft does, and those that could be added only in part are refused.

Servers that hold some are tested in test_adapters.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import HIDDEN, LAYERS, make_tiny_model
from torch import nn

from dist_eval.errors import CheckpointError
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.weights import ModelWeights
from dist_eval.petals.server.blocks import load_block
from dist_eval.petals.server.lora import adapter_bytes, add_adapter, using_adapter

KEY = "base_model.model.model.layers.1.proj.lora_A.weight"
UP = KEY.replace("lora_A", "lora_B")
PLAIN = {KEY: torch.ones(2, 4), UP: torch.ones(3, 2)}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none"}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 3, bias=False)


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> str:
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return str(folder)


def test_an_adapter_is_added_to_the_requests_that_ask_for_it(tmp_path: Path) -> None:
    layer, name, inputs = Layer(), write(tmp_path, PLAIN), torch.ones(1, 4)
    plain = layer.proj(inputs)
    add_adapter(layer, "layers", 1, name)
    torch.testing.assert_close(layer.proj(inputs), plain)
    with using_adapter(name):
        torch.testing.assert_close(layer.proj(inputs), plain + 4 * 2 * 6 / 2)
    with using_adapter("another"):
        torch.testing.assert_close(layer.proj(inputs), plain)


OPTIONS: dict[str, dict[str, Any]] = {
    "qwen3": {
        "use_rslora": True,
        "rank_pattern": {"k_proj": 6, "^model.layers.2.mlp.*": 3},
        "alpha_pattern": {"gate_proj": 5, r"layers\.[12]\..*": 7},
    },
    "phi3": {"rank_pattern": {"o_proj": 2, r"layers\.0\.mlp\.\w+": 8}, "alpha_pattern": {"layers.1.mlp.down_proj": 3}},
    "mixtral": {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": "orthogonal"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIONS)
@torch.no_grad()
def test_blocks_with_an_adapter_compute_what_peft_does(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    base, adapter = tmp_path / "base", str(tmp_path / "adapter")
    make_tiny_model(name).save_pretrained(base)
    options = {"target_modules": "all-linear", **OPTIONS[name]}
    tuned = get_peft_model(make_tiny_model(name), LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **options))
    for key, tensor in tuned.named_parameters():
        if "lora_B" in key:  # zero by default: the adapter would change nothing
            torch.nn.init.normal_(tensor, std=0.3)
    tuned.save_pretrained(adapter)
    whole = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), adapter)
    model = whole.eval().base_model.model.base_model

    architecture = Architecture(model.config)
    weights = ModelWeights(str(base), architecture)
    blocks = [load_block(architecture, weights, index, dtype) for index in range(LAYERS)]
    for index, block in enumerate(blocks):
        add_adapter(block.layer, architecture.layers, index, adapter)
    inputs = torch.randn(2, 10, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)

    def computed() -> torch.Tensor:
        hidden = inputs
        for block in blocks:
            (hidden,) = block(hidden)
        return model.get_submodule(architecture.final_norm)(hidden)

    with using_adapter(adapter):
        found = computed()
    expected = model(inputs_embeds=inputs, use_cache=False).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0)
    assert (computed() - expected).abs().max() > 0.1
    held = sum(parameter.numel() for key, parameter in model.named_parameters() if "lora_" in key)
    assert sum(adapter_bytes(adapter, architecture.layers, index) for index in range(LAYERS)) == 4 * held


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (PLAIN, {"use_dora": True}, "use_dora: True"),
        (PLAIN, {"target_parameters": ["mlp.experts"]}, "target_parameters: ['mlp.experts']"),
        (PLAIN, {"bias": "all"}, "bias: all"),
        (PLAIN, {"lora_bias": True}, "lora_bias: True"),
        (PLAIN, {"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: pissa_niter_4"),
        (PLAIN, {"alora_invocation_tokens": [5]}, "alora_invocation_tokens: [5]"),
        (PLAIN, {"of_a_later_version": 1}, "of_a_later_version: 1"),
        (PLAIN, {"peft_type": "IA3"}, "peft_type: IA3"),
        (PLAIN, {"r": 3}, "lora_A.weight of rank 2, but adapter_config.json says 3"),
        (PLAIN, {"alpha_pattern": {"(": 3}}, "has a pattern that cannot be read: "),
        (PLAIN, {"r": None}, "should have numbers as r and lora_alpha, not None, 6"),
        ({KEY: PLAIN[KEY]}, {}, "is not part of a pair"),
        ({**PLAIN, UP.replace("weight", "bias"): torch.ones(3)}, {}, "lora_B.bias is not part of a pair"),
        (
            {key.replace("layers.1.proj", "embed_tokens"): tensor for key, tensor in PLAIN.items()},
            {},
            "embed_tokens.lora_A.weight, which is in none of the model's blocks",
        ),
        ({key.replace("proj", "other"): tensor for key, tensor in PLAIN.items()}, {}, "does not fit block 1"),
    ],
)
def test_an_adapter_that_would_be_added_in_part_is_refused(
    tensors: dict[str, torch.Tensor], config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(words)):
        add_adapter(Layer(), "layers", 1, write(tmp_path, tensors, **config))
