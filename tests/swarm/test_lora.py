"""LoRA adapters that could be added only in part are refused; what one computes is tested in test_adapters.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dist_eval.errors import CheckpointError
from dist_eval.swarm.lora import add_adapter, using_adapter

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


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (PLAIN, {"use_dora": True}, "use_dora: True"),
        (PLAIN, {"bias": "all"}, "bias: all"),
        (PLAIN, {"lora_bias": True}, "lora_bias: True"),
        (PLAIN, {"peft_type": "IA3"}, "peft_type: IA3"),
        (PLAIN, {"r": None}, "should have numbers as r and lora_alpha, not None, 6"),
        ({KEY: PLAIN[KEY]}, {}, "is no half of a pair"),
        ({**PLAIN, UP.replace("weight", "bias"): torch.ones(3)}, {}, "lora_B.bias is no half of a pair"),
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
