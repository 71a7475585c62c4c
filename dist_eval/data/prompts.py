"""Prompts: templates over the columns of a dataset, and the label words that a language model chooses from."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from typing import Any

from dist_eval.data.chat import Frame
from dist_eval.errors import ConfigError, DataError

_END = re.compile(r"\s*\S{1,64}\s*\Z")
_CONSTANT_END = re.compile(r"\s\S+\s*\Z")
_STAND_IN = "."  # replaces the column at the end of a prompt

_SHOWN = 40


class Template:
    r"""Text with column names in braces, such as `Review: {text}\nSentiment:`; `{{` and `}}` are literal braces."""

    def __init__(self, text: str) -> None:
        self.text, body = text, text.rstrip()
        self.space = text[len(body) :]  # trailing white space
        try:
            parts = list(string.Formatter().parse(body))
        except ValueError as error:
            raise _no_template(text, str(error)) from error
        self._parts: list[tuple[str, str | None]] = []
        self.end = ""  # the text after the last column, without trailing white space
        for literal, column, spec, conversion in parts:
            if column == "" or spec or conversion:
                raise _no_template(text, "braces must contain exactly the name of a column")
            self._parts.append((literal, column))
            self.end = self.end + literal if column is None else ""
        # the named columns, each once, in order of appearance
        self.columns = list(dict.fromkeys(column for _, column in self._parts if column is not None))
        if not self.columns:
            raise _no_template(text, "it names no column, such as {text}")

    def fill(self, columns: Sequence[Sequence[str]]) -> list[str]:
        """Returns the prompt of each row, without trailing white space.

        The texts of all rows are given by column, in the order of `self.columns`.
        """
        of_name = dict(zip(self.columns, columns, strict=True))
        filled = []
        for row in range(len(columns[0])):
            pieces = (literal + (of_name[column][row] if column else "") for literal, column in self._parts)
            filled.append("".join(pieces).rstrip())
        return filled


def join_texts(texts: Sequence[str], begin: str) -> str:
    """Joins texts and removes BOS (`begin`, possibly empty) from all but the first."""
    return "".join([*texts[:1], *(text.removeprefix(begin) for text in texts[1:])])


def _no_template(text: str, why: str) -> ConfigError:
    return ConfigError(f"--prompt {text!r} is not a template: {why}. Write {{{{ and }}}} for literal braces.")


class PromptedWords:
    """A prompt, and a label word for each class.

    White space between them belongs to the prompt or to the word, depending on the tokenizer: many join a space with
    the next word, and some join a line break with the preceding text. A word must have tokens of its own after the
    prompt, none of them unknown.

    Args:
        template: the prompt of a row.
        words: the word of each class, of one or more tokens.
        tokenizer: a Hugging Face tokenizer.
        delimiter: text between prompt and word; None for the template's trailing white space, or a space without any.
            After a chat template the default is empty.
        frame: frame around each prompt; by default none.

    Attributes:
        words: the word of each class, with the white space that belongs to it.
        tokens: token ids of each word after a prompt.
        before: examples before the prompt of every row; empty at first.
    """

    def __init__(
        self,
        template: Template,
        words: Sequence[str],
        tokenizer: Any,
        delimiter: str | None = None,
        frame: Frame | None = None,
    ) -> None:
        self.template, self.before, self._tokenizer = template, "", tokenizer
        self.frame = frame or Frame(tokenizer)
        self._begin = tokenizer.bos_token or ""
        # an example in the same message as the prompt keeps the word as written
        between = (template.space or " ") if delimiter is None else template.space + delimiter
        self._examples = [between + word for word in words]
        self._fixed_end, space = template.end, template.space
        if self.frame.is_chat:
            self._fixed_end = self.frame.tail.rstrip()
            space = self.frame.tail[len(self._fixed_end) :]
        if delimiter is not None:
            ways = [(space, delimiter)]
        elif space or self.frame.is_chat:
            ways = [(space, ""), ("", space)]
        else:
            ways = [("", " ")]
        for space, own in ways:
            self._space, self.words = space, [own + word for word in words]
            end = _end_of((self._fixed_end or _STAND_IN) + space)
            try:
                self.tokens = self._tokens_after(end, self._where_end)
                break
            except ConfigError:
                if (space, own) == ways[-1]:
                    raise
        self._known = {end}
        for word, tokens in zip(self.words, self.tokens, strict=True):
            if tokenizer.unk_token_id in tokens:
                raise ConfigError(
                    f"--label-words {word!r} has characters that the tokenizer does not know. Choose another word, or "
                    "another --label-delimiter if the space is unknown."
                )

    @property
    def _where_end(self) -> str:
        if self.frame.is_chat:
            return "the end of the chat template"
        return "the end of --prompt" if self.template.end else "a prompt"

    def tokens_before(self) -> int:
        """Returns the number of tokens of `before`, in its frame."""
        from dist_eval.data.tokenizers import token_ids

        return len(token_ids(self._tokenizer, [self.frame.around(self.before)])[0][0])

    def put_before(self, texts: Sequence[str], between: str) -> None:
        """Puts examples before the prompt of every row; only the first keeps its BOS."""
        self.before = join_texts([text + between for text in texts], self._begin)

    def with_words(self, columns: Sequence[Sequence[str]], classes: Sequence[int]) -> list[str]:
        """Returns the prompts of labelled rows, each with the word of its class."""
        return [
            prompt + self._examples[number] for prompt, number in zip(self.template.fill(columns), classes, strict=True)
        ]

    def render(self, columns: Sequence[Sequence[str]], first_row: int, where: Callable[[int], str]) -> list[str]:
        """Builds the prompts of rows from `first_row` on, whose texts are given by column of the template.

        Refuses a row after whose prompt the tokenizer splits a word differently; `where` returns its location, for the
        message.
        """
        texts = self.template.fill(columns)
        if self.before:
            texts = [join_texts([self.before, text], self._begin) for text in texts]
        texts = [self._framed(text) + self._space for text in texts]
        if not _CONSTANT_END.search(self._fixed_end):
            for row, text in enumerate(texts):
                end = _end_of(text)
                if end not in self._known:
                    self._require_same(end, f"the prompt of {where(first_row + row)}")
                    self._known.add(end)
        return texts

    def _framed(self, text: str) -> str:
        return self.frame.around(text + self.template.space).rstrip() if self.frame.is_chat else self.frame.around(text)

    def _require_same(self, end: str, where: str) -> None:
        try:
            tokens = self._tokens_after(end, where)
        except ConfigError as error:
            raise DataError(str(error)) from error
        for word, found, expected in zip(self.words, tokens, self.tokens, strict=True):
            if found != expected:
                raise DataError(
                    f"The tokenizer splits the label word {word!r} differently after {where}, which ends with "
                    f"{end[-_SHOWN:]!r}. End --prompt with fixed text, such as 'Answer:'."
                )

    def _tokens_after(self, end: str, where: str) -> list[list[int]]:
        ids = self._tokenizer([end, *(end + word for word in self.words)])["input_ids"]
        own, found = ids[0], []
        if own and own[-1] == self._tokenizer.eos_token_id and own[-1] == ids[1][-1]:
            raise ConfigError(
                "The tokenizer appends an end token to every text, so no label word can follow. Set add_eos_token to "
                "false in the model's tokenizer_config.json."
            )
        for word, whole in zip(self.words, ids[1:], strict=True):
            if whole[: len(own)] != own or len(whole) == len(own):
                raise ConfigError(
                    f"The tokenizer joins the label word {word!r} with {where}, {end[-_SHOWN:]!r}, leaving it no "
                    "tokens of its own. End --prompt with other characters, or choose another --label-delimiter."
                )
            found.append(whole[len(own) :])
        return found


def _end_of(text: str) -> str:
    """Returns the last word of a text with its white space, which determines how a following word is split."""
    match = _END.search(text)
    return match[0] if match else text
