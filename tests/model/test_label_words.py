"""A language model with label words: its logits follow from the model's own log-likelihoods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FAMILIES
from transformers import AutoTokenizer

from dist_eval import demo
from dist_eval.data.prompts import PromptedWords, Template
from dist_eval.errors import ConfigError
from dist_eval.model.backbone import load_local_backbone
from dist_eval.model.classifier import Classifier
from dist_eval.model.label_words import LabelWordClassifier, LabelWords
from dist_eval.petals.base_model.config import read_base_config

PROMPTS = ["12/3g", "4", "..5d91/..dfaf5/.3"]


def label_words(
    words: list[str], model: Path = demo.BASE_MODEL, names: list[str] | None = None, **options: Any
) -> LabelWords:
    tokenizer = AutoTokenizer.from_pretrained(demo.BASE_MODEL)
    prompted = PromptedWords(Template("{text}"), words, tokenizer, delimiter="")
    return LabelWords(str(model), read_base_config(str(model)), prompted, names or words, **options)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    ids = AutoTokenizer.from_pretrained(demo.BASE_MODEL)(PROMPTS)["input_ids"]
    padded = [row + [7] * (max(map(len, ids)) - len(row)) for row in ids]
    return torch.tensor(padded), torch.tensor([len(row) for row in ids])


def log_likelihoods(path: Path, words: list[list[int]]) -> torch.Tensor:
    """Of each word after each prompt, by Hugging Face's model, one text at a time."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids, lengths = batch()
    found = torch.empty(len(ids), len(words), dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):
        for column, word in enumerate(words):
            text = torch.cat([ids[row, :length], torch.tensor(word)])
            with torch.no_grad():
                scores = torch.log_softmax(model(input_ids=text[None, :-1]).logits[0, length - 1 :].double(), dim=1)
            found[row, column] = scores[torch.arange(len(word)), word].sum()
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_words_of_one_token_are_log_likelihoods_but_for_a_constant(
    family: str, tiny_models: dict[str, Path]
) -> None:
    target = label_words(["<3>", "<7>", "g"], tiny_models[family])
    assert (target.forwards_per_text, target.extra_tokens) == (1, 0)
    model = target.on(load_local_backbone(str(tiny_models[family])), 1024)
    assert isinstance(model, Classifier)
    logits, expected = model.answer(*batch())["logits"].double(), log_likelihoods(tiny_models[family], target.tokens)
    torch.testing.assert_close(torch.log_softmax(logits, dim=1), torch.log_softmax(expected, dim=1), atol=1e-5, rtol=0)


WORDS = ["<3>", "1<7>", "1<4>", "22<3>"]
DIVISORS = {"none": [1, 1, 1, 1], "tokens": [1, 2, 2, 3], "bytes": [3, 4, 4, 5]}


@pytest.mark.parametrize("normalization", DIVISORS)
def test_logits_of_longer_words_are_log_likelihoods(normalization: str) -> None:
    target = label_words(WORDS, normalization=normalization)
    assert (target.forwards_per_text, target.extra_tokens) == (3, 2)
    model = target.on(load_local_backbone(str(demo.BASE_MODEL)), 1024)
    assert isinstance(model, LabelWordClassifier)
    expected = log_likelihoods(demo.BASE_MODEL, target.tokens) / torch.tensor(DIVISORS[normalization])
    torch.testing.assert_close(model.answer(*batch())["logits"].double(), expected, atol=1e-4, rtol=1e-5)


def test_words_that_share_all_but_the_last_token_share_forwards() -> None:
    ids, lengths = batch()
    assert label_words(WORDS).on(load_local_backbone(str(demo.BASE_MODEL)), 1024).forwards(ids, lengths).shape[0] == 9


def test_many_forwards_of_a_text_are_sent_in_requests_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, sent = load_local_backbone(str(demo.BASE_MODEL)), []
    run = backbone.hidden_states
    monkeypatch.setattr(
        backbone, "hidden_states", lambda ids, *rest, **more: sent.append(ids.numel()) or run(ids, *rest, **more)
    )
    ids, lengths = batch()
    answers = [label_words(WORDS).on(backbone, budget).answer(ids, lengths)["logits"] for budget in (1024, 60)]
    assert len(sent) > 2 and max(sent[1:]) <= 60
    torch.testing.assert_close(*answers)


def test_a_word_beyond_the_models_vocabulary_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    target = label_words(["<3>", "<9>"])
    monkeypatch.setattr(target.config, "vocab_size", 30)
    with pytest.raises(ConfigError, match="'<9>' has the token id 30, but the model knows only 30 ids"):
        replace(target)


@pytest.mark.parametrize(
    ("words", "names", "message"),
    [
        (["<3>", "<7>", "<3>"], None, "--label-words names a class twice"),
        (["<3>", "<3>"], ["a", "b"], "--label-words '<3>' and '<3>' are the same tokens. Choose other words."),
        (["1<7>", "1"], None, "'1' and '1<7>' start alike: the first is never less likely."),
    ],
)
def test_words_that_cannot_be_told_apart_are_an_error(words: list[str], names: list[str] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        label_words(words, names=names)


def test_words_that_start_alike_are_told_apart_by_length() -> None:
    assert label_words(["1<7>", "1"], normalization="tokens").forwards_per_text == 2


def test_whatever_changes_the_answers_changes_the_digest() -> None:
    targets = [
        label_words(["1", "2"]),
        label_words(["2", "1"]),
        label_words(["1", "2"], normalization="bytes"),
        label_words(["1", "2"], few_shot_rows=[4]),
    ]
    assert len({target.digest() for target in targets}) == len(targets)
