"""Random base models, small enough for any test."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from dist_eval.petals.model.checkpoint import TunedCheckpoint

VOCABULARY, HIDDEN, LAYERS = 128, 64, 4
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED: dict[str, Any] = {**_COMMON, "intermediate_size": 96, "num_key_value_heads": 2}
_EXPERTS: dict[str, Any] = {**_GROUPED, "num_experts_per_tok": 2}
_NARROW_EXPERTS: dict[str, Any] = {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 32}
_LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_MLA = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 24}
_LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16}
_BLOOM = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": 4}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**_GROUPED, "num_key_value_heads": 4}),
    "grouped": ("llama", _GROUPED),
    "llama31": (
        "llama",
        {**_GROUPED, "rope_parameters": {**_LLAMA31, "rope_theta": 5e5, "original_max_position_embeddings": 32}},
    ),
    "dynamic": ("llama", {**_GROUPED, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
    "wide": ("llama", {**_GROUPED, "hidden_size": 512, "num_hidden_layers": 1, "num_key_value_heads": 4}),
    "bloom": ("bloom", _BLOOM),
    "falcon": ("falcon", {**_COMMON, "num_kv_heads": 2, "new_decoder_architecture": True, "alibi": False}),
    "falcon_alibi": ("falcon", {**_COMMON, "alibi": True, "multi_query": True, "parallel_attn": False}),
    "mpt": ("mpt", {"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_heads": 4, "n_layers": LAYERS}),
    "mixtral": ("mixtral", {**_EXPERTS, "num_local_experts": 4}),
    "arcee": ("arcee", _GROUPED),
    "qwen2": ("qwen2", _GROUPED),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 24}),
    "qwen3_moe": ("qwen3_moe", {**_NARROW_EXPERTS, "head_dim": 24}),
    "mistral": ("mistral", {**_GROUPED, "sliding_window": 16}),
    "phi3": ("phi3", _GROUPED),
    "granite": ("granite", {**_GROUPED, "embedding_multiplier": 12.0, "logits_scaling": 8.0}),
    "gemma": ("gemma", {**_GROUPED, "head_dim": 16}),
    "gemma2": ("gemma2", {**_GROUPED, "head_dim": 24, "sliding_window": 16, "query_pre_attn_scalar": 24}),
    "gemma3": ("gemma3_text", {**_GROUPED, "head_dim": 24, "sliding_window": 16, "sliding_window_pattern": 2}),
    "olmo": ("olmo", _GROUPED),
    "olmo2": ("olmo2", _GROUPED),
    "olmo3": ("olmo3", {**_GROUPED, "sliding_window": 16}),
    "nanochat": ("nanochat", _GROUPED),
    "smollm3": ("smollm3", _GROUPED),
    "glm4": ("glm4", {**_GROUPED, "head_dim": 16}),
    "gpt_oss": ("gpt_oss", {**_EXPERTS, "num_local_experts": 4, "head_dim": 16, "sliding_window": 16}),
    "deepseek_v3": (
        "deepseek_v3",
        {
            **_EXPERTS,
            **_MLA,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "moe_intermediate_size": 32,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 2,
        },
    ),
    "jetmoe": ("jetmoe", {**_EXPERTS, "num_local_experts": 4, "kv_channels": 16}),
    "cohere2": ("cohere2", {**_GROUPED, "sliding_window": 16}),
    "gpt_neox": ("gpt_neox", {**_COMMON, "intermediate_size": 96}),
    "xglm": (
        "xglm",
        {**_COMMON, "d_model": HIDDEN, "num_layers": LAYERS, "attention_heads": 4, "ffn_dim": 96, "layerdrop": 0.0},
    ),
    "phi": ("phi", {**_COMMON, "intermediate_size": 96}),
    "qwen3_next": (
        "qwen3_next",
        {
            **_NARROW_EXPERTS,
            **_LINEAR,
            "head_dim": 16,
            "linear_value_head_dim": 16,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "recurrent_gemma": (
        "recurrent_gemma",
        {**_GROUPED, "head_dim": 16, "lru_width": HIDDEN, "attention_window_size": 16},
    ),
}
"""Type and settings of each model. "grouped" has grouped-query attention; "llama31" the rotary embeddings of Llama 3.1,
but for texts of 32 tokens; the requests of "wide" take Petals' streaming path."""

ROPE_SWITCH = 12
_LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [float(factor) for factor in range(1, 9)],
    "original_max_position_embeddings": ROPE_SWITCH,
}
LONGROPE = ("phi3", {**_GROUPED, "rope_parameters": _LONGROPE, "original_max_position_embeddings": ROPE_SWITCH})
"""A model whose rotary embeddings are others for texts of more than `ROPE_SWITCH` tokens: "longrope"."""


def make_tiny_model(name: str) -> Any:
    """Makes a random language model, one of `DECODERS`, or "longrope"."""
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model_type, settings = LONGROPE if name == "longrope" else DECODERS[name]
    kind = CONFIG_MAPPING[model_type]
    read = {*inspect.signature(kind).parameters, *kind.attribute_map}  # configs keep whatever else they are given
    settings = {key: value for key, value in settings.items() if key in read}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))
    for parameter in model.parameters():  # norms and biases are constant at first, and would hide a mistake
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def save_tiny_models(folder: Path, *names: str, tokenizer: Any = None) -> dict[str, Path]:
    """Writes models to subfolders of a folder, each with a tokenizer if one is given; returns these."""
    for name in names:
        model = make_tiny_model(name)
        model = model.base_model if name == "bloom" else model  # as those on the hub are, and servers with 2.2 need it
        model.save_pretrained(folder / name)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder / name)
    return {name: folder / name for name in names}


@contextmanager
def edited_tensors(folder: Path) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of a model's folder, which are written back as they are in the end."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    yield tensors
    save_file(tensors, path, metadata={"format": "pt"})


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
