"""Keys of a config that change what is computed are read, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import random_checkpoint, save_tiny_models

from dist_eval.errors import CheckpointError
from dist_eval.model.base_model_spec import read_target
from dist_eval.petals.base_model.config import read_base_config, read_config
from dist_eval.petals.model.checkpoint import TunedCheckpoint

LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4}
BERT: dict[str, Any] = {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2}
DEFAULT_ROPE = {"rope_theta": 10000.0, "rope_type": "default"}


def written(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_parameters": DEFAULT_ROPE},
        {"rope_parameters": {"rope_theta": 10000, "rope_type": "default", "partial_rotary_factor": 1.0}},
        {"rope_theta": 100.0},
        {"rope_theta": 100.0, "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}},
    ],
)
def test_rotary_embeddings_that_are_read_pass(rope: dict[str, Any], tmp_path: Path) -> None:
    read_base_config(written(tmp_path, LLAMA | rope))


@pytest.mark.parametrize("value", ["64", [64], {}, 64.0, True])
@pytest.mark.parametrize("key", ["num_attention_heads", "max_position_embeddings", "num_key_value_heads"])
def test_a_size_that_is_no_integer_is_named(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} must be an integer, not "):
        read_base_config(written(tmp_path, LLAMA | {key: value}))


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        (LLAMA, "rope_kind", "yarn"),
        (LLAMA, "residual_multiplier", 0.5),
        (LLAMA, "use_parallel_residual", True),
        (LLAMA, "sliding_pattern", 6),
        (LLAMA, "output_multiplier", 0.5),
        (BERT, "pool_last_token", True),
        (BERT, "rope_theta", 100.0),
        (BERT, "attention_sink", True),
        (BERT, "layer_types", ["sliding_attention"] * 12),
    ],
)
def test_an_unknown_key_that_may_change_what_is_computed_is_refused(
    model: dict[str, Any], key: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} .*is unknown to transformers"):
        read_config(written(tmp_path, model | {key: value}), "model")


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        (LLAMA, {"mlp_bias": False, "attention_dropout": 0.1, "head_dim": 16, "dtype": "float16", "rope_local": None}),
        (LLAMA, {"transformers.js_config": {"dtype": "q4"}, "is_llama_config": True, "rope_interleaved": False}),
        (LLAMA, {"residual_multiplier": 1.0, "neftune_noise_alpha": 5, "max_sequence_length": 2048}),
        (LLAMA, {"temperature": 0.5, "do_sample": True, "_attn_implementation_autoset": True}),
        (BERT, {"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_fc_layers": 3, "pooler_type": "first"}),
        (BERT, {"sentence_transformers": {"version": "4.1"}, "gradient_checkpointing": True, "output_past": True}),
        ({"model_type": "falcon", "new_decoder_architecture": True}, {"activation": "gelu", "ffn_hidden_size": 18176}),
        ({"model_type": "bloom"}, {"n_embed": 64, "offset_alibi": 100, "skip_bias_add": True, "n_inner": None}),
    ],
)
def test_an_unknown_key_that_cannot_matter_passes(model: dict[str, Any], keys: dict[str, Any], tmp_path: Path) -> None:
    read_config(written(tmp_path, model | keys), "model")


@pytest.mark.parametrize("of_another_type", [False, True])
def test_keys_that_only_the_code_of_a_models_modules_reads_pass(of_another_type: bool, tmp_path: Path) -> None:
    keys = {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True, "conv_kernel_size": 3}
    keys |= {"conv_act": "tanh", "conv_groups": 1, "embedding_size": 16, "attention_head_size": 8, "cls_dropout": 0.1}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "pos_att_type": "p2c|c2p"}
    model = written(tmp_path, sizes | keys | {"model_type": "roberta" if of_another_type else "deberta-v2"})
    if of_another_type:
        with pytest.raises(CheckpointError, match=r"pos_att_type .* is unknown to transformers"):
            read_config(model, "model")
    else:
        config = read_config(model, "model")
        assert {key: getattr(config, key) for key in keys} == keys


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_kernel_from_the_hub_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"{key} 'org/kernel' is code from a hub"):
        read_config(written(tmp_path, BERT | {key: "org/kernel"}), "model")
    read_config(written(tmp_path, BERT | {key: "eager"}), "model")


def test_the_installed_transformers_reads_all_that_it_writes(tmp_path: Path) -> None:
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    for kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        values = kind().to_dict()  # with the defaults, which save_pretrained leaves out
        read_config(written(tmp_path, values), "model")


@pytest.mark.parametrize(
    ("of_checkpoint", "message"),
    [
        ({"rope_theta": 100.0}, r"base model with rope_theta '100\.0', but this one has '10000\.0'"),
        ({"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}, r"rope_theta '100\.0'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, r"base model with (factor|rope_type)"),
        ({"hidden_act": "gelu"}, r"base model with hidden_act 'gelu', but this one has 'silu'"),
        ({"prompt_projection": True}, r"prompt_projection True is unknown"),
    ],
)
def test_a_checkpoint_of_a_base_model_that_computes_something_else_is_refused(
    of_checkpoint: dict[str, Any], message: str, tmp_path: Path
) -> None:
    base = save_tiny_models(tmp_path, "llama")["llama"]
    random_checkpoint("ptune").save(tmp_path / "tuned")
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    written(tmp_path / "tuned", config | of_checkpoint)
    tuned = TunedCheckpoint.load(tmp_path / "tuned")
    with pytest.raises(CheckpointError, match=message):
        tuned.require_base("base", read_base_config(str(base)))


def test_a_checkpoint_with_the_whole_config_of_its_base_model_fits(tmp_path: Path) -> None:
    base = save_tiny_models(tmp_path, "llama")["llama"]
    random_checkpoint("ptune").save(tmp_path / "tuned")
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    whole = json.loads((base / "config.json").read_text())
    written(tmp_path / "tuned", whole | config | {"dht_prefix": "x", "max_retries": 3, "use_cache": False})
    tuned = TunedCheckpoint.load(tmp_path / "tuned")
    tuned.require_base("base", read_base_config(str(base)))
    assert torch.equal(tuned.head, random_checkpoint("ptune").head)


@pytest.mark.parametrize("weights", [True, False])
def test_a_lora_adapter_is_neither_a_model_nor_a_part_of_one(weights: bool, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    if weights:
        written(folder, LLAMA)
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/base"})
    )
    with pytest.raises(CheckpointError, match=r"LoRA adapter \(adapter_config\.json\) for org/base\. .*--adapter"):
        read_base_config(str(folder))
    with pytest.raises(CheckpointError, match=r"LoRA adapter"):
        read_target(None, str(folder))


def test_keys_of_the_decoder_in_a_model_of_several_parts_are_checked(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "num_hidden_layers": 2}
    whole = {"model_type": "gemma3", "text_config": text}
    assert read_config(written(tmp_path, whole), "model").model_type == "gemma3"
    with pytest.raises(CheckpointError, match=r"config\.json: text_config: attention_temperature .*is unknown"):
        read_config(written(tmp_path, {**whole, "text_config": text | {"attention_temperature": 3.5}}), "model")


def test_quantized_weights_are_refused_as_such(tmp_path: Path) -> None:
    model = written(tmp_path, LLAMA | {"quantization_config": {"quant_method": "fp8"}})
    with pytest.raises(CheckpointError, match=r"the weights are quantized \(.*fp8.*\), .* in bfloat16 or float32"):
        read_base_config(model)
