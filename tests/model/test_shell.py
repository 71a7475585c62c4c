"""What a client computes itself, against the whole model of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import DECODERS, make_tiny_model
from transformers import AutoConfig

from dist_eval.errors import CheckpointError
from dist_eval.model.classifier import load_local_backbone
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.model.shell import Shell
from dist_eval.swarm.blocks import Architecture


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "wide"])
def test_embeddings_norm_and_logits_are_those_of_the_whole_model(name: str, tmp_path: Path) -> None:
    model = make_tiny_model(name)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    shell, output = Shell(str(tmp_path), config), OutputEmbedding(str(tmp_path), config)
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
        assert torch.equal(shell.embedded(token_ids, None), first[0])
        hidden = shell.final_norm(last[0].flatten(0, 1))
        torch.testing.assert_close(output.logits(hidden), expected, atol=1e-6 * float(expected.abs().max()), rtol=0)
        local = load_local_backbone(str(tmp_path))
        torch.testing.assert_close(local.hidden_states(token_ids, None, None), last[0], atol=1e-6, rtol=1e-6)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    make_tiny_model("qwen3").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks weights for norm\.weight"):
        Shell(str(tmp_path), AutoConfig.from_pretrained(tmp_path))
