"""What a client computes itself, against the whole model of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import DECODERS, HIDDEN, edited_tensors, make_tiny_model
from transformers import AutoConfig, AutoModelForCausalLM

from dist_eval.errors import CheckpointError
from dist_eval.model.backbone import load_local_backbone
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.model.swarm_backbone import load_client_base
from dist_eval.petals.base_model.architecture import Architecture


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "wide"])
def test_embeddings_norm_and_logits_are_those_of_the_whole_model(name: str, tmp_path: Path) -> None:
    model = make_tiny_model(name)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    client, output = load_client_base(str(tmp_path)), OutputEmbedding(str(tmp_path), config)
    token_ids = torch.randint(0, 128, (3, 20), generator=torch.Generator().manual_seed(1))
    first: list[torch.Tensor] = []
    last: list[torch.Tensor] = []
    layers = model.base_model.get_submodule(Architecture(config).layers)
    layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: first.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    layers[-1].register_forward_hook(
        lambda _, args, found: last.append(found[0] if isinstance(found, tuple) else found)
    )
    with torch.no_grad():
        expected = model(token_ids, use_cache=False).logits.flatten(0, 1)
        assert torch.equal(client.embedded(token_ids), first[0])
        hidden = client.swarm_final_norm(last[0].flatten(0, 1))
        torch.testing.assert_close(output.logits(hidden), expected, atol=1e-6 * float(expected.abs().max()), rtol=0)
        local = load_local_backbone(str(tmp_path))
        torch.testing.assert_close(local.hidden_states(token_ids), last[0], atol=1e-6, rtol=1e-6)


def test_an_output_embedding_in_the_file_is_used_whatever_the_config_says(tmp_path: Path) -> None:
    make_tiny_model("qwen3").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    hidden = torch.linspace(-1, 1, 3 * HIDDEN).view(3, HIDDEN)
    logits = OutputEmbedding(str(tmp_path), AutoConfig.from_pretrained(tmp_path)).logits(hidden)
    torch.testing.assert_close(logits, model.lm_head(hidden))


@pytest.mark.parametrize("name", ["layers.1.self_attn.q_proj.bias", "norm.bias"])
def test_weights_that_would_be_left_out_are_named(name: str, tmp_path: Path) -> None:
    make_tiny_model("qwen3").save_pretrained(tmp_path)
    with edited_tensors(tmp_path) as tensors:
        tensors[f"model.{name}"] = torch.ones(3)
    with pytest.raises(CheckpointError, match=rf"has weights that transformers ignores: \['{name}'\]"):
        load_local_backbone(str(tmp_path))


def test_missing_weights_are_named(tmp_path: Path) -> None:
    make_tiny_model("qwen3").save_pretrained(tmp_path)
    with edited_tensors(tmp_path) as tensors:
        del tensors["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"lacks weights for norm\.weight"):
        load_client_base(str(tmp_path))
