"""Random base models, small enough for any test: `python tests/tiny_models.py FOLDER NAME...` writes some of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from dist_eval.model.checkpoint import TunedCheckpoint

VOCABULARY, HIDDEN, LAYERS = 128, 64, 4
_COMMON: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_attention_heads": 4}
_LLAMA: dict[str, Any] = {**_COMMON, "max_position_embeddings": 2048}
_BLOCKS: dict[str, Any] = {"intermediate_size": 96, "num_hidden_layers": LAYERS}


def make_tiny_model(name: str) -> Any:
    """Makes a random model.

    Args:
        name: "llama", "bloom", "falcon" or "mixtral"; "grouped", a Llama with grouped-query attention; "llama31",
            which also has the `rope_scaling` of Llama 3.1, but for texts of 32 tokens; "wide", a Llama whose requests
            take Petals' streaming path.
    """
    import transformers as hf

    torch.manual_seed(0)
    if name == "bloom":
        return hf.BloomModel(hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=HIDDEN, n_layer=LAYERS, n_head=4))
    if name == "falcon":
        options = {"num_kv_heads": 2, "new_decoder_architecture": True, "alibi": False, "num_hidden_layers": LAYERS}
        return hf.FalconForCausalLM(hf.FalconConfig(**_COMMON, **options))
    if name == "mixtral":
        experts = {"num_key_value_heads": 2, "num_local_experts": 4, "max_position_embeddings": 2048}
        return hf.MixtralForCausalLM(hf.MixtralConfig(**_COMMON, **_BLOCKS, **experts))
    if name == "wide":
        wide = {"hidden_size": 512, "intermediate_size": 64, "num_hidden_layers": 1}
        return hf.LlamaForCausalLM(hf.LlamaConfig(**{**_LLAMA, **wide}))
    grouped: dict[str, Any] = {"num_key_value_heads": 4 if name == "llama" else 2}
    if name == "llama31":
        scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        grouped["rope_scaling"] = {**scaling, "original_max_position_embeddings": 32}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**_LLAMA, **_BLOCKS, **grouped))


def save_tiny_models(folder: Path, *names: str) -> dict[str, Path]:
    """Writes models to subfolders of a folder; returns these."""
    for name in names:
        make_tiny_model(name).save_pretrained(folder / name, safe_serialization=True)
    return {name: folder / name for name in names}


def random_checkpoint(
    mode: str | None,
    *,
    model_type: str = "llama",
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    labels: int = 3,
    length: int = 5,
    seed: int = 0,
) -> TunedCheckpoint:
    """Makes a random tuned checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    return TunedCheckpoint(
        head=torch.randn(labels, hidden, generator=generator),
        prompts=torch.randn(length, hidden, generator=generator) if mode else None,
        deep_prompts=torch.randn(layers, length, hidden, generator=generator) if mode == "deep_ptune" else None,
        label_names=[f"class-{i}" for i in range(labels)],
        architecture={"model_type": model_type, "hidden_size": hidden, "num_hidden_layers": layers},
    )


if __name__ == "__main__":
    save_tiny_models(Path(sys.argv[1]), *sys.argv[2:])
