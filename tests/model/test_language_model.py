"""Log-likelihoods of continuations equal those of Hugging Face's language models, on a swarm and in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from conftest import FAMILIES
from tiny_models import VOCABULARY

from dist_eval.errors import CheckpointError
from dist_eval.model import output_embedding
from dist_eval.model.backbone import load_local_backbone
from dist_eval.model.language_model import LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.petals.base_model.config import read_base_config

if TYPE_CHECKING:
    from conftest import SwarmClient

    from dist_eval.petals.server.private import PrivateSwarm

PARTS = [(5, 3), (5, 1), (1, 9), (12, 1), (7, 2)]


def texts(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Contexts with continuations; the last three are one-token choices of one question."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([(context, context + choice) for context, choice in PARTS] + [(6, 7)] * 3)
    ids = torch.randint(0, VOCABULARY, (len(lengths), int(lengths.max())), generator=random)
    ids[-2:, :6] = ids[-3, :6]
    return ids, lengths


def reference(path: Path, ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    sums, greedy = [], []
    for row, (start, end) in zip(ids, lengths.tolist(), strict=True):
        with torch.no_grad():
            found = torch.log_softmax(model(input_ids=row[None, : end - 1]).logits[0, start - 1 :], dim=1)
        own = row[start:end]
        sums.append(found[torch.arange(len(own)), own].sum())
        greedy.append((found.argmax(dim=1) == own).all())
    return torch.stack(sums).to(torch.float64), torch.stack(greedy)


def likeliest_continuations(path: Path, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Replaces the continuation of every second text by what greedy decoding gives."""
    from transformers import AutoModelForCausalLM

    model, ids = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval(), ids.clone()
    for row in range(0, len(ids), 2):
        for place in range(*lengths[row].tolist()):
            with torch.no_grad():
                ids[row, place] = model(input_ids=ids[row : row + 1, :place]).logits[0, -1].argmax()
    return ids


def language_model(path: Path, backbone: Any = None) -> LanguageModel:
    return LanguageModel(
        backbone or load_local_backbone(str(path)), OutputEmbedding(str(path), read_base_config(str(path)))
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_log_likelihoods_equal_those_of_hugging_face(
    family: str, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_embedding, "_CHUNK_BYTES", 7 * 4 * 32)  # the vocabulary in several chunks
    path = tiny_models[family]
    ids, lengths = texts()
    ids = likeliest_continuations(path, ids, lengths)
    expected, greedy = reference(path, ids, lengths)
    assert greedy[::2].all() and not greedy.all()
    answer = language_model(path).answer(ids, lengths)
    torch.testing.assert_close(answer["log_likelihood"], expected, atol=1e-5, rtol=1e-5)
    assert answer["is_greedy"].tolist() == greedy.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_swarm_gives_the_same_log_likelihoods(
    family: str, tiny_models: dict[str, Path], family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient
) -> None:
    ids, lengths = texts()
    remote = language_model(tiny_models[family], swarm_client.backbone(family_swarms[family]))
    for name, column in language_model(tiny_models[family]).answer(ids, lengths).items():
        torch.testing.assert_close(remote.answer(ids, lengths)[name], column)


def test_equal_forwards_are_computed_once(tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, sent = language_model(tiny_models["llama"]), []
    run = model.backbone.hidden_states
    monkeypatch.setattr(
        model.backbone, "hidden_states", lambda ids, *rest, **more: sent.append(len(ids)) or run(ids, *rest, **more)
    )
    ids, lengths = texts()
    model.answer(ids, lengths)
    assert sent == [len(PARTS) + 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_other_dtypes_are_computed_with_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size="1KB")  # several files, and their index
    output = OutputEmbedding(str(tmp_path), AutoConfig.from_pretrained(tmp_path))
    weight = model.lm_head.weight.detach().to(torch.float32)
    assert torch.equal(output.rows([49, 0]), weight[[49, 0]])
    hidden, positions, tokens = torch.randn(3, 16), torch.tensor([2, 0, 1, 2]), torch.tensor([49, 0, 7, 3])
    found, _ = output.log_likelihoods(hidden, positions, tokens)
    expected = torch.log_softmax((hidden @ weight.T).to(torch.float64), dim=1)[positions, tokens]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_a_model_without_a_language_model_head_is_an_error(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaModel(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="has no language-model head"):
        OutputEmbedding(str(tmp_path), config)


@pytest.mark.parametrize("of_whole", [True, False, None])
@pytest.mark.parametrize("of_text", [True, False, None])
def test_embeddings_are_tied_as_transformers_ties_those_of_a_larger_model(
    of_whole: bool | None, of_text: bool | None, tmp_path: Path
) -> None:
    """Its file has no output embedding; where nothing ties it, transformers would make a random one."""
    from transformers import AutoConfig, LlavaConfig, LlavaForConditionalGeneration

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = {**sizes, "model_type": "clip_vision_model", "image_size": 28, "patch_size": 14}
    settings = {"text_config": {**sizes, "model_type": "llama", "vocab_size": VOCABULARY}, "vision_config": vision}
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(LlavaConfig(**settings, image_token_index=0, tie_word_embeddings=True)).eval()
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for part, flag in ((config, of_whole), (config["text_config"], of_text)):
        part.pop("tie_word_embeddings", None)
        part.update({} if flag is None else {"tie_word_embeddings": flag})
    (tmp_path / "config.json").write_text(json.dumps(config))
    if not AutoConfig.from_pretrained(tmp_path).tie_word_embeddings:
        with pytest.raises(CheckpointError, match="has no language-model head"):
            language_model(tmp_path)
        return
    ids, lengths = texts()
    ids, lengths = ids[:1].clamp(min=1), lengths[:1]
    with torch.no_grad():
        logits = LlavaForConditionalGeneration.from_pretrained(tmp_path)(input_ids=ids[:, :7]).logits[0, 4:]
    expected = torch.log_softmax(logits.double(), dim=1)[torch.arange(3), ids[0, 5:8]].sum()
    torch.testing.assert_close(language_model(tmp_path).answer(ids, lengths)["log_likelihood"][0], expected)
