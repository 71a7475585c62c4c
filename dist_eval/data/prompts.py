"""Prompts: templates over the columns of a dataset, and the words that a language model chooses from behind them."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any

from dist_eval.errors import ConfigError, DataError

BETWEEN_EXAMPLES = "\n\n"
_LAST_WORD = re.compile(r"\s*\S{1,64}\Z")
_CONSTANT_END = re.compile(r"\s\S+\Z")
_SHOWN = 40
_STAND_IN = "."
"""For the end of a prompt that ends with a column."""


class Template:
    r"""Text with names of columns in braces, such as `Review: {text}\nSentiment:`; `{{` and `}}` stand for braces.

    White space at the end belongs to what follows the prompt, because tokenizers join it with the next word.

    Args:
        text: the template.

    Attributes:
        text: the template.
        columns: the columns that it names, each once, in order of appearance.
        space: white space at its end.

    Raises:
        ConfigError: it names no column, or has braces that are no names of columns.
    """

    def __init__(self, text: str) -> None:
        self.text, body = text, text.rstrip()
        self.space = text[len(body) :]
        try:
            parts = list(string.Formatter().parse(body))
        except ValueError as error:
            raise _no_template(text, str(error)) from error
        for _, column, spec, conversion in parts:
            if column == "" or spec or conversion:
                raise _no_template(text, "braces hold the name of a column, and nothing else")
        self._parts = [(literal, column) for literal, column, _, _ in parts]
        self.columns = list(dict.fromkeys(column for _, column in self._parts if column is not None))
        if not self.columns:
            raise _no_template(text, "it names no column, such as {text}")

    @property
    def end(self) -> str:
        """The text behind the last column, without white space at its end."""
        literal, column = self._parts[-1]
        return literal if column is None else ""

    def fill(self, columns: Sequence[Sequence[str]]) -> list[str]:
        """Fills in rows.

        Args:
            columns: the texts of all rows, by column, in the order of `columns`.

        Returns:
            The prompt of each row, without white space at its end.
        """
        of_name = dict(zip(self.columns, columns, strict=True))
        return [
            "".join(
                literal + (of_name[column][row] if column is not None else "") for literal, column in self._parts
            ).rstrip()
            for row in range(len(columns[0]))
        ]


def _no_template(text: str, why: str) -> ConfigError:
    return ConfigError(f"--prompt {text!r} is no template: {why}. Write {{{{ and }}}} for braces that are text.")


class PromptedWords:
    """A prompt, and a word for each class that may follow it.

    Args:
        template: the prompt of a row.
        words: the word of each class, with the white space before it; one or more tokens.
        tokenizer: a Hugging Face tokenizer.
        before: text before the prompt of every row, such as examples.

    Attributes:
        tokens: token ids of each word behind a prompt.

    Raises:
        ConfigError: a word has no tokens of its own behind the prompt.
    """

    def __init__(self, template: Template, words: Sequence[str], tokenizer: Any, before: str = "") -> None:
        self.template, self.words, self.before, self._tokenizer = template, list(words), before, tokenizer
        self._is_constant = bool(_CONSTANT_END.search(template.end))
        self.tokens = self._tokens_behind(_end_of(template.end or _STAND_IN), "the end of --prompt")
        self._known = {_end_of(template.end or _STAND_IN)}

    def render(self, columns: Sequence[Sequence[str]], first_row: int) -> list[str]:
        """Makes the prompts of some rows.

        Args:
            columns: the texts of the rows, by column of the template.
            first_row: position of the first row, for messages.

        Raises:
            DataError: the tokenizer splits a word differently behind a prompt; the message names the row.
        """
        texts = [self.before + text for text in self.template.fill(columns)]
        if not self._is_constant:
            for row, text in enumerate(texts):
                end = _end_of(text)
                if end not in self._known:
                    self._require_same(end, first_row + row)
                    self._known.add(end)
        return texts

    def _require_same(self, end: str, row: int) -> None:
        where = f"the prompt of row {row} (counted from 0)"
        try:
            tokens = self._tokens_behind(end, where)
        except ConfigError as error:
            raise DataError(str(error)) from error
        for word, found, expected in zip(self.words, tokens, self.tokens, strict=True):
            if found != expected:
                raise DataError(
                    f"The tokenizer splits the label word {word!r} differently behind {where}, which ends with "
                    f"{end[-_SHOWN:]!r}. End --prompt with a fixed text, such as 'Answer:'."
                )

    def _tokens_behind(self, end: str, where: str) -> list[list[int]]:
        ids = self._tokenizer([end, *(end + word for word in self.words)])["input_ids"]
        own, found = ids[0], []
        for word, whole in zip(self.words, ids[1:], strict=True):
            if whole[: len(own)] != own or len(whole) == len(own):
                raise ConfigError(
                    f"The tokenizer joins the label word {word!r} with {where}, {end[-_SHOWN:]!r}, so that it has no "
                    "tokens of its own. End --prompt with other characters, or choose another --label-delimiter."
                )
            found.append(whole[len(own) :])
        return found


def _end_of(text: str) -> str:
    """Returns the last word of a text, with the white space before it: on it depends how a following word is split."""
    match = _LAST_WORD.search(text)
    return match[0] if match else text
