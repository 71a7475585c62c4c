"""Generated tokens → texts, which end at stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Tokens looked at besides those of a stop string itself: it may be split differently where it is generated
_TOKENS_AROUND = 2


class StopStrings:
    """Strings at which a generated text ends.

    They are looked for as in the Hugging Face backend of the lm-evaluation-harness (`MultiTokenEOSCriteria`): in the
    decoded last tokens, so that the tokenizer may split them in any way.

    Args:
        strings: the strings; empty ones are ignored.
        tokenizer: a Hugging Face tokenizer.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Any) -> None:
        self._strings, self._tokenizer = [string for string in strings if string], tokenizer
        sizes = [len(tokenizer.encode(string, add_special_tokens=False)) for string in self._strings]
        self._window = max(sizes, default=0) + _TOKENS_AROUND

    def end(self, tokens: Sequence[int]) -> bool:
        """Returns whether the last tokens of a text hold a stop string."""
        if not self._strings:
            return False
        text = self._tokenizer.decode(tokens[-self._window :])
        return any(string in text for string in self._strings)


def text_of(tokens: Sequence[int], stop: Sequence[str], tokenizer: Any, think_end: str | int | None = None) -> str:
    """Returns the text of tokens, without special ones, up to the first stop string.

    Args:
        tokens: their ids.
        stop: the stop strings; empty ones are ignored.
        tokenizer: a Hugging Face tokenizer.
        think_end: text, or id of a token: the text begins after the last one, if there is any, and its white space.
    """
    if isinstance(think_end, int) and think_end in tokens:
        tokens = tokens[len(tokens) - list(reversed(tokens)).index(think_end) :]
    text: str = tokenizer.decode(tokens, skip_special_tokens=True)
    if isinstance(think_end, str):
        text = text.split(think_end)[-1]
    if think_end is not None:
        text = text.lstrip()
    for string in filter(None, stop):
        text = text.split(string, 1)[0]
    return text
