"""What a model's generation config says of its texts: they are those of transformers, or it is refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY

from dist_eval.errors import CheckpointError, ConfigError
from dist_eval.model.backbone import load_local_backbone
from dist_eval.model.generation import Generator, end_tokens_of
from dist_eval.model.generation_config import GenerationSettings
from dist_eval.model.language_model import LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.results.inputs import Decoding

LENGTHS, NEW_TOKENS, END = [3, 9, 1, 17], 12, 2


class Tokenizer:
    eos_token_id = END


def prompts() -> torch.Tensor:
    return torch.randint(3, 40, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def folder(tiny_models: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_models["llama"], tmp_path / "model"))


def write(folder: Path, *, in_config: bool = False, **settings: Any) -> Path:
    """Writes a generation config, or as older models have it, into the model's config."""
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / ("config.json" if in_config else "generation_config.json")
    before = json.loads(path.read_text()) if in_config else {"eos_token_id": END}
    path.write_text(json.dumps(before | settings))
    return folder


def ours(folder: Path, **decoding: Any) -> list[list[int]]:
    name = str(folder)
    model = LanguageModel(load_local_backbone(name), OutputEmbedding(name, read_base_config(name)))
    decoding = {"settings": GenerationSettings(name).of_logits(), **decoding}
    ends = end_tokens_of(name, Tokenizer())
    generator = Generator(model, [Decoding(max_new_tokens=NEW_TOKENS, **decoding)], None, ends)
    answer = generator.answer(prompts(), torch.tensor([(length, 0, row) for row, length in enumerate(LENGTHS)]))
    rows = zip(answer["tokens"].tolist(), answer["length"].tolist(), strict=True)
    return [row[:length] for row, length in rows]


def theirs(folder: Path, **options: Any) -> list[list[int]]:
    """Of each prompt alone."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), []
    for row, length in zip(prompts(), LENGTHS, strict=True):
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0, **options}
        whole = model.generate(row[None, :length], attention_mask=torch.ones(1, length).long(), **options)
        found.append(whole[0, length:].tolist())
    return found


EVERY = [*range(3, VOCABULARY)]
SETTINGS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.8},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 3.0},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[token] for token in range(3, 90)] + [[91, 92]]},
    "sequence_bias": {"sequence_bias": [[[token], 4.0] for token in range(5, 15)]},
    "suppress_tokens": {"suppress_tokens": EVERY[:100]},
    "begin_suppress_tokens": {"begin_suppress_tokens": EVERY[:100]},
    "min_new_tokens": {"min_new_tokens": 7, "suppress_tokens": EVERY[4:]},
    "min_length": {"min_length": 12, "suppress_tokens": EVERY[4:]},
    "forced_bos_token_id": {"forced_bos_token_id": 11},
    "forced_eos_token_id": {"forced_eos_token_id": 17},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": [3, 9.0]},
    "several": {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 4,
        "begin_suppress_tokens": [2],
    },
    "without effect": {"do_sample": True, "top_k": 3, "top_p": 0.2, "temperature": 3.0, "max_new_tokens": 3},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_texts_are_those_of_transformers(name: str, folder: Path) -> None:
    plain = ours(folder)
    write(folder, **SETTINGS[name])
    assert ours(folder) == theirs(folder)
    assert (ours(folder) != plain) == (name != "without effect")


def test_older_models_have_settings_in_their_config(folder: Path) -> None:
    plain = ours(folder)
    write(folder, in_config=True, repetition_penalty=1.8)
    assert ours(folder) == theirs(folder) != plain
    write(folder)
    assert ours(folder) == theirs(folder) == plain, "a file of its own counts alone"


def test_what_is_drawn_follows_the_settings_too(folder: Path) -> None:
    write(folder, suppress_tokens=EVERY[5:])
    found = ours(folder, temperature=2.0, seed=1)
    assert {token for text in found for token in text} <= {0, 1, 2, *EVERY[:5]}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_beams": 4}, "has num_beams: 4, which changes texts and is not supported"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha: 0.6"),
        ({"guidance_scale": 1.5}, "guidance_scale: 1.5"),
        ({"stop_strings": ["\n"]}, "give them with --stop, and remove it"),
        ({"token_healing": True}, "token_healing: True"),
        ({"max_time": 2.0}, "max_time: 2.0"),
        ({"repetition_penalty": -1.0}, "Texts cannot be generated with "),
    ],
)
def test_other_searches_are_refused_by_name(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        GenerationSettings(str(write(tmp_path, **settings))).of_logits()


def test_values_that_ask_for_nothing_and_settings_that_a_task_names(tmp_path: Path) -> None:
    off = {"num_beams": 1, "repetition_penalty": 1.0, "guidance_scale": 1, "min_length": 0, "forced_eos_token_id": None}
    settings = GenerationSettings(str(write(tmp_path, **off)))
    assert settings.of_logits() == {}
    assert settings.of_logits({"repetition_penalty": 1.2}) == {"repetition_penalty": 1.2, "eos_token_id": [END]}
    settings = GenerationSettings(str(write(tmp_path, repetition_penalty=1.2, num_beams=4)))
    assert settings.of_logits({"repetition_penalty": 1.0, "num_beams": 1}) == {}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json cannot be read"):
        GenerationSettings(str(tmp_path))
