"""Servers embed token ids with the bits of their clients, whatever a family does beside the look-up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import DECODERS, VOCABULARY, save_tiny_models
from torch import nn
from transformers import AutoConfig

from dist_eval.model.swarm_backbone import load_client_base
from dist_eval.petals.base_model.architecture import Architecture, _is_lookup
from dist_eval.petals.base_model.weights import ModelWeights
from dist_eval.petals.server.embedding import Embedder, table_bytes


@pytest.mark.parametrize("name", DECODERS)
def test_embeddings_from_rows_of_the_stored_table_are_those_of_the_whole_model(name: str, tmp_path: Path) -> None:
    folder = save_tiny_models(tmp_path, name)[name]
    config = AutoConfig.from_pretrained(folder)
    architecture = Architecture(config, name)
    weights, client = ModelWeights(str(folder), architecture), load_client_base(str(folder))
    assert architecture.has_lookup
    embedder = Embedder(architecture, weights, None)
    assert table_bytes(architecture, weights) == VOCABULARY * config.hidden_size * 4
    ids, soft = torch.randint(0, VOCABULARY, (3, 9)), torch.randn(4, config.hidden_size)
    with torch.no_grad():
        assert torch.equal(embedder.embedded(ids, torch.empty(0)), client.embedded(ids, None))
        assert torch.equal(embedder.embedded(ids, soft), client.embedded(ids, soft))
    for wrong in (ids + VOCABULARY, ids - VOCABULARY, ids.int(), ids[0]):
        with pytest.raises(ValueError, match="Received token ids"):
            embedder.embedded(wrong, torch.empty(0))
    with pytest.raises(ValueError, match="Received soft prompts"):
        embedder.embedded(ids, soft[:, 1:])


class ById(nn.Embedding):
    """Adds something that depends on more than a row of the table."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) + ids.unsqueeze(-1)


def test_embeddings_that_depend_on_more_than_a_row_are_left_to_the_client() -> None:
    assert _is_lookup(nn.Embedding(8, 4, padding_idx=7))
    assert not _is_lookup(ById(8, 4))
    assert not _is_lookup(nn.Linear(8, 4))
