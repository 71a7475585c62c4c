"""Templates, and how label words are tokenized behind them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dist_eval import demo
from dist_eval.data.labelled_rows import LabelledRows, draw_examples
from dist_eval.data.prompts import PromptedWords, Template
from dist_eval.errors import ConfigError, DataError


def joining_tokenizer(merge: tuple[str, str] = ("a", "b"), space: str = " ") -> Any:
    """A tokenizer of characters that joins two of them to one token, whatever stands before."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.normalizers import Replace

    symbols = [*("a", "b", "c", space, ":", "x"), "".join(merge)]
    tokenizer = Tokenizer(BPE({symbol: number for number, symbol in enumerate(symbols)}, [merge]))
    tokenizer.normalizer = Replace(" ", space)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_a_template_is_filled_row_by_row() -> None:
    template = Template("Q: {question} {{sic}} {context}\nAgain: {question}\nA: ")
    assert template.columns == ["question", "context"]
    assert template.space == " "
    filled = template.fill([["one", "two{x}"], ["c", "d\n"]])
    assert filled == ["Q: one {sic} c\nAgain: one\nA:", "Q: two{x} {sic} d\n\nAgain: two{x}\nA:"]


def test_white_space_at_the_end_is_told_apart() -> None:
    assert Template("{text}").fill([["one \n", "two"]]) == ["one", "two"]
    assert Template("{text}:\n\n").space == "\n\n"
    assert Template("{text}\n{{Answer}}").end == "\n{Answer}"


@pytest.mark.parametrize("text", ["no column", "{}", "{text!r}", "{text:>9}", "{text", "text}", ""])
def test_what_is_no_template_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--prompt {text!r} is not a template: ")):
        Template(text)


def test_words_have_their_tokens_behind_the_prompt() -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo.BASE_MODEL)
    prompted = PromptedWords(Template("{text}"), ["<3>", "1<4>"], tokenizer, delimiter="")
    prompted.before = "12<3>\n\n"
    assert prompted.tokens == [[24], [4, 25]]
    assert prompted.render([["12/3g", "4"]], 0, str) == ["12<3>\n\n12/3g", "12<3>\n\n4"]
    assert prompted.with_words([["12", "4"]], [1, 0]) == ["121<4>", "4<3>"]


def test_only_the_first_of_all_examples_begins_a_text() -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo.BASE_MODEL)
    prompted = PromptedWords(Template("<s>{text}"), ["<3>", "<4>"], tokenizer, delimiter="")
    assert prompted.render([["12"]], 0, str) == ["<s>12"]
    prompted.put_before(prompted.with_words([["1", "2"]], [0, 1]), "/")
    assert prompted.before == "<s>1<3>/2<4>/"
    assert prompted.tokens_before() == 7
    assert prompted.render([["12"]], 0, str) == ["<s>1<3>/2<4>/12"]


@pytest.mark.parametrize(
    ("template", "delimiter", "prompt", "word"),
    [
        ("{text}:", None, "c:", " b"),
        ("{text}: ", None, "c: ", "b"),  # nothing joins the space with the word
        ("{text}:a", "", None, None),
        ("{text}: ", "", "c: ", "b"),
        ("{text}:", "x", "c:", "xb"),
    ],
)
def test_white_space_goes_where_the_tokenizer_keeps_prompt_and_word_apart(
    template: str, delimiter: str | None, prompt: str | None, word: str | None
) -> None:
    if prompt is None:
        with pytest.raises(ConfigError, match="joins the label word 'b'"):
            PromptedWords(Template(template), ["b", "c"], joining_tokenizer(), delimiter)
        return
    prompted = PromptedWords(Template(template), ["b", "c"], joining_tokenizer(), delimiter)
    assert (prompted.render([["c"]], 0, str), prompted.words[0]) == ([prompt], word)


def test_a_space_that_the_tokenizer_joins_with_the_word_belongs_to_the_word() -> None:
    prompted = PromptedWords(Template("{text}: "), ["b", "c"], joining_tokenizer(("Ġ", "b"), space="Ġ"), None)
    assert (prompted.render([["c"]], 0, str), prompted.words) == (["c:"], [" b", " c"])


def test_characters_that_the_tokenizer_does_not_know_are_no_word() -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo.BASE_MODEL)
    with pytest.raises(ConfigError, match="' <3>' has characters that the tokenizer does not know"):
        PromptedWords(Template("{text}"), ["<3>", "<4>"], tokenizer)


def test_a_word_that_the_tokenizer_joins_with_the_prompt_is_an_error() -> None:
    with pytest.raises(ConfigError, match="joins the label word 'b' with the end of --prompt, ' a',"):
        PromptedWords(Template("{text} a"), ["b", "c"], joining_tokenizer(), "")


def test_a_row_whose_prompt_splits_a_word_differently_is_an_error() -> None:
    prompted = PromptedWords(Template("{text}x{other}"), ["b", "c"], joining_tokenizer(), "")
    assert prompted.render([["a"], ["c"]], 0, str) == ["axc"]
    with pytest.raises(DataError, match=r"the label word 'b' with the prompt of test.csv, row 8 \(counted"):
        prompted.render([["a", "a"], ["c", "a"]], 7, "test.csv, row {} (counted from 0)".format)


def test_behind_a_fixed_end_no_row_can_split_a_word_differently() -> None:
    prompted = PromptedWords(Template("{text} :"), ["b", "c"], joining_tokenizer(), "")
    assert prompted.render([["a", "ab"]], 0, str) == ["a :", "ab :"]


def test_examples_are_drawn_by_the_seed_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "".join(f"row {row},{['no', 'yes'][row % 2]}\n" for row in range(50)))
    source = LabelledRows(str(path), ["text"], "label", ["no", "yes"], numbers=True)
    rows, examples = draw_examples(source, 5, 3)
    assert len(set(rows)) == 5
    assert examples == [([f"row {row}"], row % 2) for row in rows]
    assert draw_examples(source, 5, 3) == (rows, examples)
    assert draw_examples(source, 5, 4) != (rows, examples)
    with pytest.raises(DataError, match=r"--few-shot 51 needs 51 rows, but .*train.csv has 50"):
        draw_examples(source, 51, 0)


def test_examples_whose_labels_the_evaluated_data_may_read_otherwise_need_a_decision(tmp_path: Path) -> None:
    path, names = tmp_path / "train.csv", ["1", "2", "3", "4", "5"]
    path.write_text("text,label\na,3\nb,4\n")  # classes 3 and 4, or those of these names
    with pytest.raises(DataError, match=r"train\.csv: column 'label' is ambiguous: .* Set --labels names or"):
        draw_examples(LabelledRows(str(path), ["text"], "label", names), 2, 0)
    for labels, first in (("names", 2), ("numbers", 3)):
        _, examples = draw_examples(LabelledRows(str(path), ["text"], "label", names, labels), 2, 0)
        assert sorted(examples) == [(["a"], first), (["b"], first + 1)]
