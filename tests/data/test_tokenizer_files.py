"""Tokenizer files of Llama 3's kind give the ids of the newest library, or are refused.

The ids were recorded from tokenizers 0.23.3, of which dist_eval itself installs an older version:

    uv run --no-project --with tokenizers python -c 'import json, sys; from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(sys.argv[1])
    print([tokenizer.encode(text).ids for text in json.load(sys.stdin)])' FOLDER/tokenizer.json <<< '["a text", ...]'
"""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from dist_eval.data.tokenizer_files import _VOCABULARIES, load_tokenizer, save_tokenizer, tokenizer_digest
from dist_eval.errors import CheckpointError

WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MERGES = ["t h", "th e", "Ġ the", "Ġ c", "a t", "Ġc at", "1 2", "Ã ¼", "r e", "o n", "re on", "cats r"]
UNREACHED = ["Ġzebra", "cats", "123", "GrÃ¼ÃŁe", "Ġ<"]
"""Tokens that no merges lead to, which `ignore_merges` finds all the same; a merge may use them."""

IDS = {
    "the cat, the cats": [0, 258, 262, 12, 259, 262, 83],
    "cats": [0, 270],
    " zebra zebras  zebra": [0, 269, 221, 90, 69, 66, 82, 65, 83, 221, 269],
    "1234 12 123456": [0, 271, 20, 221, 263, 221, 271, 20, 21, 22],
    "Grüße aus Köln, Grüße": [0, 272, 221, 65, 85, 83, 221, 43, 128, 115, 76, 78, 12, 221, 39, 82, 264, 128, 254, 69],
    "a <b <|begin_of_text|> zebra": [0, 65, 273, 66, 221, 0, 269],
    "on reon\n\nthe": [0, 266, 221, 267, 199, 199, 258],
    "": [0],
    "the cat's 日本語 zebra\n": [0, 258, 262, 7, 83, 221, 163, 246, 99, 163, 251, 106, 165, 104, 253, 269, 199],
}
PAIR = ("a zebra", "cats"), [0, 65, 269, 0, 270]

WITHOUT = {
    "cats": [0, 67, 261, 83],
    "1234 12 123456": [0, 263, 19, 20, 221, 263, 221, 263, 19, 20, 21, 22],
    "a <b <|begin_of_text|> zebra": [0, 65, 221, 28, 66, 221, 0, 221, 90, 69, 66, 82, 65],
    "on reon\n\nthe": [0, 266, 221, 267, 199, 199, 258],
}
"""The same without `ignore_merges`."""

is_old = pytest.mark.skipif(
    tuple(map(int, tokenizers.__version__.split(".")[:2])) >= (0, 19), reason="this library knows such files"
)


def alphabet() -> list[str]:
    """The characters that stand for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(number) for number in (*printable, *range(256, 512 - len(printable)))]


def definition(**model: Any) -> dict[str, Any]:
    special = "<|begin_of_text|>"
    tokens = [special, *alphabet(), *("".join(merge.split()) for merge in MERGES), *UNREACHED]
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


@pytest.mark.parametrize("whole", [True, False], ids=["ignore_merges", "merges only"])
@pytest.mark.parametrize("as_pairs", [True, False], ids=["pairs", "text"])
def test_ids_are_those_of_the_newest_library(tmp_path: Path, as_pairs: bool, whole: bool) -> None:
    merges = {} if as_pairs else {"merges": MERGES}
    tokenizer = load_tokenizer(write(tmp_path, definition(ignore_merges=whole, **merges)))
    expected = IDS if whole else WITHOUT
    assert dict(zip(expected, ids_of(tokenizer, list(expected)), strict=True)) == expected


def test_ids_are_those_of_the_newest_library_in_pairs_and_truncated_texts(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, definition()))
    (first, second), expected = PAIR
    assert ids_of(tokenizer, [first], [second]) == [expected]
    for length in (1, 2, 4):
        shorter = [ids[:length] for ids in IDS.values()]
        assert ids_of(tokenizer, list(IDS), truncation=True, max_length=length) == shorter
    assert ids_of(tokenizer, list(IDS)) == list(IDS.values())


def test_a_saved_tokenizer_is_the_one_that_was_loaded(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, definition()))
    save_tokenizer(tokenizer, tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "tokenizer.json").read_text(encoding="utf-8")) == definition()
    again = load_tokenizer(str(tmp_path / "saved"))
    assert ids_of(again, list(IDS)) == ids_of(tokenizer, list(IDS)) == list(IDS.values())
    assert tokenizer_digest(again) == tokenizer_digest(tokenizer)
    plain = load_tokenizer(write(tmp_path, definition(ignore_merges=False)))
    assert tokenizer_digest(plain) != tokenizer_digest(tokenizer)


METASPACE = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "prepend_scheme": "first"}


@is_old
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre_tokenizer": METASPACE}, "would ignore its prepend_scheme, and token ids would be wrong"),
        (
            {"pre_tokenizer": {"type": "Whitespace"}},
            "would split 6 words that its ignore_merges keeps, such as 'catsr'",
        ),
        ({"normalizer": {"type": "OfTomorrow"}}, "cannot read it"),
        ({"model": {**definition()["model"], "merges": [["a b", "c"]]}}, r"cannot read its merge \['a b', 'c'\]"),
    ],
    ids=["a field", "not by bytes", "a component", "a merge"],
)
def test_what_an_older_library_would_read_wrongly_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    place = write(tmp_path, {**definition(), **changes})
    with pytest.raises(CheckpointError, match=words) as caught:
        load_tokenizer(place)
    assert f"{place}/tokenizer.json is newer than the installed library: tokenizers {tokenizers.__version__} " in str(
        caught.value
    )
    assert "Petals' main branch" in str(caught.value)


class TouchesFile:
    """An object that, unpickled, creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("with_definition", [False, True])
def test_a_tokenizer_whose_vocabulary_is_a_pickle_is_refused(with_definition: bool, tmp_path: Path) -> None:
    pytest.importorskip("transformers.models.transfo_xl", reason="gone in transformers 5")
    (folder := tmp_path / "model").mkdir()
    if with_definition:
        write(folder, definition())
    for name in ("vocab.pkl", "vocab.bin"):
        (folder / name).write_bytes(pickle.dumps(TouchesFile(tmp_path / "executed")))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TransfoXLTokenizer"}))
    with pytest.raises(CheckpointError, match=r"is a TransfoXLTokenizer, whose vocabulary \(vocab\.pkl\) could run"):
        load_tokenizer(str(folder))
    assert not (tmp_path / "executed").exists()
    load_tokenizer(write(tmp_path, definition()))  # all is as before


def test_every_other_tokenizer_of_transformers_has_a_known_vocabulary() -> None:
    import transformers
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    named = [names if isinstance(names, tuple) else (names,) for names in TOKENIZER_MAPPING_NAMES.values()]
    files: dict[str, set[str]] = {}
    for name in filter(None, itertools.chain(*named)):
        of_kind = getattr(getattr(transformers, name, None), "vocab_files_names", None) or {}
        files[name] = {file for file in of_kind.values() if not file.endswith(_VOCABULARIES)}
    assert len(files) > 50
    assert {name for name, others in files.items() if others} <= {"TransfoXLTokenizer"}


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
    save_tokenizer(loaded, tmp_path / "b")
    assert load_tokenizer(str(tmp_path / "b")).apply_chat_template(chat, tokenize=False) == "the cat!"
