"""Texts begin once, whether the tokenizer or the text itself puts the first token there."""

from __future__ import annotations

from typing import Any

from harness_tasks import WORDS, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dist_eval.data.tokenizers import encode_texts, token_ids

TOKENIZER = make_tokenizer(128)
ADDS_NOTHING = make_tokenizer(128)
ADDS_NOTHING.backend_tokenizer.post_processor = processors.ByteLevel()
ENDS_TEXTS = make_tokenizer(128)
ENDS_TEXTS.backend_tokenizer.post_processor = processors.TemplateProcessing(
    single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from([*WORDS, "<s>"]), max_size=4)), min_size=1))
def test_it_is_what_the_harness_own_backend_makes_of_a_text(rows: list[tuple[bool, list[str]]]) -> None:
    texts = ["<s>" * begins + " ".join(words) for begins, words in rows]
    ids, begun = token_ids(TOKENIZER, texts)
    expected = [TOKENIZER.encode(text, add_special_tokens=not text.startswith("<s>")) for text in texts]
    assert ids == expected
    assert begun.tolist() == [text.startswith("<s>") for text in texts]


def pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    return [str(one) for one in tokenizer.convert_ids_to_tokens(ids) if one in ("<s>", "</s>")]


def test_other_tokens_that_the_tokenizer_adds_stay() -> None:
    [first], _ = token_ids(ENDS_TEXTS, ["<s>river"])
    assert pieces(ENDS_TEXTS, first) == ["<s>", "</s>"]
    encoded, begun = encode_texts(ENDS_TEXTS, ["<s>river"], ["<s>stone"], return_token_type_ids=True)
    [pair] = encoded["input_ids"]
    assert [len(one) for one in encoded["token_type_ids"]] == [len(pair)]
    assert pieces(ENDS_TEXTS, pair) == ["<s>", "</s>", "<s>", "</s>"] and begun.tolist() == [True]


def test_only_what_is_written_as_the_first_token_counts_as_it() -> None:
    words = Tokenizer(models.WordLevel({"<s>": 0, "b": 1}, unk_token="<s>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="<s>")
    assert token_ids(tokenizer, ["zzz b", "<s> b"])[0] == [[0, 0, 1], [0, 1]]


def test_all_can_be_left_to_the_tokenizer() -> None:
    encoded, begun = encode_texts(TOKENIZER, ["<s>river"], begin_once=False)
    assert pieces(TOKENIZER, encoded["input_ids"][0]) == ["<s>", "<s>"] and not begun.any()


def test_a_tokenizer_that_adds_no_first_token_is_believed() -> None:
    ids, begun = token_ids(ADDS_NOTHING, ["<s><s>river", "<s>river", "river"])
    assert [pieces(ADDS_NOTHING, one) for one in ids] == [["<s>", "<s>"], ["<s>"], []]
    assert not begun.any()
