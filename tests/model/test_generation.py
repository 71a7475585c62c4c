"""Generated texts equal those of Hugging Face's `generate`, token by token, and draws follow its distribution."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from conftest import FAMILIES
from tiny_models import LAYERS, VOCABULARY

from dist_eval.data.prefix_costs import CACHE_TOKENS
from dist_eval.errors import ModelOutputError
from dist_eval.model.backbone import load_local_backbone
from dist_eval.model.generation import Draws, Generator, end_tokens_of, token_probabilities
from dist_eval.model.language_model import LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.results.inputs import Decoding

if TYPE_CHECKING:
    from conftest import SwarmClient

    from dist_eval.petals.server.private import PrivateSwarm
import numpy as np
import pytest
import torch

LENGTHS = [3, 9, 9, 1, 5, 17]
NEW_TOKENS = 12
END = 2


class Letters:
    """A tokenizer whose tokens are single characters."""

    eos_token_id = END

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(chr(token) for token in tokens if not (skip_special_tokens and token == END))


def prompts(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=random)
    return ids, torch.tensor([(length, 0, 100 + row) for row, length in enumerate(LENGTHS)])


def generator(path: Path, *, end: tuple[int, ...] = (END,), backbone: Any = None, **decoding: Any) -> Generator:
    model = LanguageModel(
        backbone or load_local_backbone(str(path)), OutputEmbedding(str(path), read_base_config(str(path)))
    )
    return Generator(model, [Decoding(**{"max_new_tokens": NEW_TOKENS, **decoding})], Letters(), end)


def texts(answer: dict[str, torch.Tensor]) -> list[list[int]]:
    rows = list(zip(answer["tokens"].tolist(), answer["length"].tolist(), strict=True))
    assert not any(any(row[length:]) for row, length in rows)
    return [row[:length] for row, length in rows]


def by_hugging_face(path: Path, ids: torch.Tensor, lengths: torch.Tensor) -> list[list[int]]:
    """Of each prompt alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    found = []
    for row, length in zip(ids, lengths[:, 0].tolist(), strict=True):
        whole = model.generate(
            row[None, :length],
            attention_mask=torch.ones(1, length, dtype=torch.int64),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=END,
            pad_token_id=0,
        )
        found.append(whole[0, length:].tolist())
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_texts_are_those_of_hugging_face(family: str, tiny_models: dict[str, Path]) -> None:
    ids, lengths = prompts()
    found = texts(generator(tiny_models[family]).answer(ids, lengths))
    assert found == by_hugging_face(tiny_models[family], ids, lengths)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_swarm_gives_the_same_texts(
    family: str, tiny_models: dict[str, Path], family_swarms: dict[str, PrivateSwarm], swarm_client: SwarmClient
) -> None:
    ids, lengths = prompts()
    backbone, record = swarm_client.backbone(family_swarms[family]), RouteRecord()
    found = generator(tiny_models[family], backbone=backbone).answer(ids, lengths, record=record)
    assert texts(found) == texts(generator(tiny_models[family]).answer(ids, lengths))
    assert {block for one in record.route for block in range(one.start, one.end)} == set(range(LAYERS))
    assert backbone.cache_tokens() > CACHE_TOKENS


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error_and_no_text(temperature: float, tiny_models: dict[str, Path]) -> None:
    backbone = load_local_backbone(str(tiny_models["llama"]))
    next(backbone.final_norm.parameters()).fill_(torch.nan)
    with pytest.raises(ModelOutputError, match="not finite"):
        generator(tiny_models["llama"], backbone=backbone, temperature=temperature).answer(*prompts())


def test_end_tokens_and_stop_strings_end_a_text_whatever_its_neighbours_do(tiny_models: dict[str, Path]) -> None:
    ids, lengths = prompts()
    free = texts(generator(tiny_models["llama"], end=()).answer(ids, lengths))
    assert all(len(text) == NEW_TOKENS for text in free)
    [first, second] = free[0][4], free[3][7]
    ended = texts(generator(tiny_models["llama"], end=(first, second)).answer(ids, lengths))
    assert ended == [text[: _before(text, {first, second})] for text in free]
    assert min(map(len, ended)) < NEW_TOKENS
    stop = "".join(map(chr, free[1][3:5]))
    stopped = texts(generator(tiny_models["llama"], end=(), stop=[stop, ""]).answer(ids, lengths))
    for text, whole in zip(stopped, free, strict=True):
        letters = "".join(map(chr, whole))
        assert len(text) == (letters.index(stop) + 2 if stop in letters else NEW_TOKENS)
        assert text == whole[: len(text)]


def _before(text: list[int], ends: set[int]) -> int:
    return next((place + 1 for place, token in enumerate(text) if token in ends), len(text))


def test_samples_depend_on_seed_and_position_alone(tiny_models: dict[str, Path]) -> None:
    ids, lengths = prompts()
    options: dict[str, Any] = {"temperature": 1.5, "top_k": 50, "top_p": 0.95}
    model = generator(tiny_models["llama"], end=(), seed=1, **options)
    whole = texts(model.answer(ids, lengths))
    alone = {}
    for rows in ([4, 1], [0], [5, 3, 2]):
        alone.update(zip(rows, texts(model.answer(ids[rows], lengths[rows])), strict=True))
    assert [alone[row] for row in range(len(ids))] == whole
    assert whole != texts(generator(tiny_models["llama"], end=(), seed=2, **options).answer(ids, lengths))
    moved = lengths.clone()
    moved[:, 2] += 1
    assert texts(model.answer(ids, moved)) != whole


def test_few_steps_for_what_prompts_share(tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens up to the end of the shortest prompt are one step, and so are those up to the next one's."""
    model = generator(tiny_models["llama"], end=(), max_new_tokens=2)
    ids, lengths = prompts()
    widths = _recorded_steps(model, monkeypatch)
    model.answer(ids[[3, 0, 5]], lengths[[3, 0, 5]])  # prompts of 1, 3 and 17 tokens
    assert widths == [1, 1, 1, 1, 13, 1]


def _recorded_steps(model: Generator, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    widths: list[int] = []
    begin = model.backbone.session

    def session(*arguments: Any, **options: Any) -> Any:
        opened = begin(*arguments, **options)
        step = opened.step
        monkeypatch.setattr(opened, "step", lambda ids, *rest: widths.append(ids.shape[1]) or step(ids, *rest))
        return opened

    monkeypatch.setattr(model.backbone, "session", session)
    return widths


def test_the_model_s_own_tokens_end_a_text(tmp_path: Path) -> None:
    """Those of its generation config, or of an older model's config, and that of its tokenizer."""
    (tmp_path / "config.json").write_text('{"model_type": "gemma3", "text_config": {"eos_token_id": 7}}')
    assert end_tokens_of(str(tmp_path), Letters()) == [2, 7]
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eos_token_id": 7}')
    assert end_tokens_of(str(tmp_path), Letters()) == [2, 7]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 9]}')
    assert end_tokens_of(str(tmp_path), Letters()) == [2, 5, 9]


@pytest.mark.parametrize("top_k", [0, 1, 7, 400])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 1.0])
def test_probabilities_are_those_of_transformers(top_k: int, top_p: float) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = 3 * torch.randn(20, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = TemperatureLogitsWarper(0.7)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    expected = TopPLogitsWarper(top_p)(None, expected).softmax(dim=1)
    found = token_probabilities(logits, Decoding(max_new_tokens=1, temperature=0.7, top_k=top_k, top_p=top_p))
    torch.testing.assert_close(found, expected)


def test_draws_follow_the_probabilities_and_never_take_what_has_none() -> None:
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.3, 0.2, 0.0]], dtype=torch.float64).expand(20_000, -1)
    drawn = Draws(3, list(range(20_000))).tokens(probabilities, list(range(20_000)))
    shares = np.bincount(drawn.numpy(), minlength=6) / 20_000
    assert shares == pytest.approx([0.0, 0.5, 0.0, 0.3, 0.2, 0.0], abs=0.02)
    assert shares[[0, 2, 5]].tolist() == [0.0, 0.0, 0.0]
