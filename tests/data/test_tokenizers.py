"""Tokenizer files as libraries of today save them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import sentencepiece

from dist_eval.data.tokenizers import load_tokenizer, tokenizer_digest

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MERGES = ["t h", "th e", "Ġ the", "Ġ c", "a t", "Ġc at", "1 2", "Ã ¼", "r e", "o n", "re on"]
TEXTS = ["the cat, the cats", "1234 12 123456", "Grüße aus Köln", "the cat's 日本語 zebra\n", ""]


VOCABULARIES = (".json", ".txt", ".codes", ".tokenizer", ".model", ".spm")
"""Endings of vocabularies that are JSON, text, or a model of sentencepiece."""


def alphabet() -> list[str]:
    """The characters that stand for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(number) for number in (*printable, *range(256, 512 - len(printable)))]


def definition(**model: Any) -> dict[str, Any]:
    special = "<|begin_of_text|>"
    tokens = [special, *alphabet(), *("".join(merge.split()) for merge in MERGES)]
    template = {"single": [{"SpecialToken": {"id": special, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
    template["pair"] = [*template["single"], *template["single"][:1], {"Sequence": {"id": "B", "type_id": 1}}]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 0, "content": special, "special": True, **flags}],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            **template,
            "special_tokens": {special: {"id": special, "ids": [0], "tokens": [special]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split() for merge in MERGES],
            **model,
        },
    }


def write(folder: Path, content: dict[str, Any]) -> str:
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def ids_of(tokenizer: Any, *texts: list[str], **options: Any) -> list[list[int]]:
    return tokenizer(*texts, return_attention_mask=False, **options)["input_ids"]


def test_merges_are_pairs_or_texts(tmp_path: Path) -> None:
    pairs = load_tokenizer(write(tmp_path, definition()))
    texts = load_tokenizer(write(tmp_path, definition(merges=MERGES)))
    assert ids_of(pairs, TEXTS) == ids_of(texts, TEXTS)
    assert tokenizer_digest(pairs) == tokenizer_digest(texts)
    assert pairs.decode(ids_of(pairs, TEXTS)[0], skip_special_tokens=True) == TEXTS[0]


def test_a_vocabulary_of_sentencepiece_is_read(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(f"digit {number} and {7 * number}" for number in range(500)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "texts.txt"),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=50,
        model_type="bpe",
        minloglevel=2,
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    expected = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model")).encode("digit 49 and 343")
    assert ids_of(load_tokenizer(str(tmp_path)), ["digit 49 and 343"], add_special_tokens=False) == [expected]


def test_a_digest_depends_on_the_rules_and_not_on_the_last_call(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, definition()))
    digest = tokenizer_digest(tokenizer)
    ids_of(tokenizer, TEXTS, truncation=True, max_length=2)
    assert tokenizer_digest(tokenizer) == digest
    tokenizer.save_pretrained(tmp_path / "saved")
    assert tokenizer_digest(load_tokenizer(str(tmp_path / "saved"))) == digest
    assert tokenizer_digest(load_tokenizer(write(tmp_path, definition(ignore_merges=False)))) != digest


def test_no_tokenizer_of_transformers_reads_a_vocabulary_that_could_run_code() -> None:
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    named = [names if isinstance(names, tuple) else (names,) for names in TOKENIZER_MAPPING_NAMES.values()]
    files: dict[str, set[str]] = {}
    for name in filter(None, itertools.chain(*named)):
        of_kind = getattr(getattr(transformers, name, None), "vocab_files_names", None) or {}
        files[name] = {file for file in of_kind.values() if not file.endswith(VOCABULARIES)}
    assert len(files) > 50
    assert not {name for name, others in files.items() if others}


def test_a_chat_template_may_mark_what_is_generated(tmp_path: Path) -> None:
    place = write(tmp_path, definition())
    template = "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(template)
    chat = [{"role": "user", "content": "the "}, {"role": "assistant", "content": "cat"}]
    assert load_tokenizer(place).apply_chat_template(chat, tokenize=False) == "the cat"


def test_a_chat_template_may_be_a_file_of_its_own_or_one_of_several(tmp_path: Path) -> None:
    (folder := tmp_path / "a").mkdir()
    assert not load_tokenizer(write(folder, definition())).chat_template
    chat = [{"role": "user", "content": "the cat"}]
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages[0]['role'] }}"}]
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": several}))
    assert load_tokenizer(str(folder)).apply_chat_template(chat, tokenize=False) == "user"
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")
    loaded = load_tokenizer(str(folder))
    assert loaded.apply_chat_template(chat, tokenize=False) == "the cat!"
    loaded.save_pretrained(tmp_path / "b")
    assert load_tokenizer(str(tmp_path / "b")).apply_chat_template(chat, tokenize=False) == "the cat!"
