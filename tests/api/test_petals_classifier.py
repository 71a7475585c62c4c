"""Petals' own classifier, opened for programs of users."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import TIMEOUT

from dist_eval import open_petals_classifier
from dist_eval.errors import CheckpointError
from dist_eval.model.classifier import base_fingerprint, load_local_backbone

if TYPE_CHECKING:
    from dist_eval.swarm.private import PrivateSwarm


def test_a_checkpoint_of_other_weights_is_refused(
    tmp_path: Path, tiny_models: dict[str, Path], family_swarms: dict[str, PrivateSwarm], make_tuned: Any
) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_models["llama"], other := tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    save_file(
        {name: tensor * 2 if name.endswith("norm.weight") else tensor for name, tensor in tensors.items()},
        other / "model.safetensors",
        metadata={"format": "pt"},
    )
    base = load_local_backbone(str(tiny_models["llama"]))
    fingerprint = base_fingerprint(base.word_embeddings, base.final_norm)
    replace(make_tuned(None), base_fingerprint=fingerprint).save(checkpoint := tmp_path / "tuned")
    swarm = family_swarms["llama"]
    with (
        pytest.raises(CheckpointError, match="other fingerprint"),
        open_petals_classifier(
            other, swarm.initial_peers, checkpoint=checkpoint, dht_prefix=swarm.dht_prefix, timeout=TIMEOUT
        ),
    ):
        pass
