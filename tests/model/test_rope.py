"""Rotary embeddings that depend on a text's length: each text has those of its own, whatever is in its batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tiny_models import LAYERS, ROPE_SWITCH, VOCABULARY, random_checkpoint, save_tiny_models

from dist_eval.errors import ConfigError
from dist_eval.model.backbone import load_local_backbone
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.model.classifier import load_locally
from dist_eval.model.generation import Generator
from dist_eval.model.language_model import CausalModel, LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.options.groups import ModelOptions
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.base_model.rope import RopeSwitch
from dist_eval.results.inputs import Decoding

if TYPE_CHECKING:
    from conftest import SwarmClient

LENGTHS = [3, ROPE_SWITCH - 1, ROPE_SWITCH, ROPE_SWITCH + 1, ROPE_SWITCH + 2, 30]
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_models(tmp_path_factory.mktemp("models"), "longrope")["longrope"]


def texts() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(1))


def theirs(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def check_log_likelihoods(folder: Path, backbone: Any) -> None:
    model = LanguageModel(backbone, OutputEmbedding(str(folder), read_base_config(str(folder))))
    ids, lengths = texts(), torch.tensor([(length - 2, length) for length in LENGTHS])
    found = model.answer(ids, lengths)["log_likelihood"]
    for row, length in enumerate(LENGTHS):
        with torch.no_grad():
            logits = theirs(folder)(input_ids=ids[row : row + 1, : length - 1]).logits[0, length - 3 :]
        expected = torch.log_softmax(logits, dim=1)[[0, 1], ids[row, length - 2 : length]].sum()
        torch.testing.assert_close(found[row], expected.double(), atol=1e-5, rtol=1e-5)


def check_texts(folder: Path, backbone: Any) -> None:
    """Some texts become longer than the original length while they are generated."""
    model = LanguageModel(backbone, OutputEmbedding(str(folder), read_base_config(str(folder))))
    generator = Generator(model, [Decoding(max_new_tokens=NEW_TOKENS)], None, [])
    ids, lengths = texts(), torch.tensor([(length, 0, row) for row, length in enumerate(LENGTHS)])
    found = generator.answer(ids, lengths)["tokens"]
    for row, length in enumerate(LENGTHS):
        whole = theirs(folder).generate(
            ids[row : row + 1, :length], max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert found[row].tolist() == whole[0, length:].tolist()


def test_log_likelihoods_and_texts_are_those_of_each_text_alone(folder: Path) -> None:
    check_log_likelihoods(folder, load_local_backbone(str(folder)))
    check_texts(folder, load_local_backbone(str(folder)))


@pytest.mark.parametrize("mode", [None, "deep_ptune"])
def test_classes_are_those_of_each_text_alone(mode: str | None, folder: Path) -> None:
    model = load_locally(str(folder), random_checkpoint(mode, model_type="phi3"))
    ids, lengths = texts(), torch.tensor(LENGTHS)
    alone = [model.logits(ids[row : row + 1, :length], lengths[row : row + 1]) for row, length in enumerate(LENGTHS)]
    torch.testing.assert_close(model.logits(ids, lengths), torch.cat(alone), atol=1e-4, rtol=1e-4)


def test_a_swarm_gives_the_same(folder: Path, swarm_client: SwarmClient) -> None:
    with swarm_client.start(folder, [(0, LAYERS)], "longrope") as swarm:
        backbone = swarm_client.backbone(swarm)
        check_log_likelihoods(folder, backbone)
        check_texts(folder, backbone)


def test_what_would_be_computed_with_other_embeddings_is_sent_whole(folder: Path) -> None:
    """A beginning that others continue, and the first part of a text that takes several requests."""
    target = CausalModel.read(str(folder))
    assert RopeSwitch(target.config).lengths == [ROPE_SWITCH]

    def read(**options: Any) -> BaseModelSpec:
        return BaseModelSpec.read(ModelOptions(model=str(folder), **options), target)

    assert read(max_length=ROPE_SWITCH + 1).shares_prefixes  # the last token is not sent
    assert not read(max_length=ROPE_SWITCH + 2).shares_prefixes
    assert read(max_length=ROPE_SWITCH, server_max_tokens=8).cache_tokens
    with pytest.raises(ConfigError, match=r"rotary embeddings \(longrope\) take one: give --max-length of at most 9"):
        read(max_length=ROPE_SWITCH + 2, server_max_tokens=8)
