"""Prompts for generated texts: token ids in a file that ranks map, and the decoding of each.

A batch has prompts of similar length and one decoding. The number of tokens of its prompts and texts is bounded,
because servers keep them in their attention caches until the batch is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.data.answers import AnswerColumns, generation_columns
from dist_eval.data.plan import BatchPlan, join_plans, plan_batches
from dist_eval.data.prefix_costs import CACHE_TOKENS
from dist_eval.data.token_file import TokenFile, write_tokens
from dist_eval.results.inputs import Decoding, PromptsSummary

TOKENS_FILE, LENGTHS_FILE, FACTS_FILE = "prompts.arrow", "prompts.npy", "prompts.json"
FILES = (TOKENS_FILE, LENGTHS_FILE, FACTS_FILE)
"""The files that `write_prompts` writes."""


class TokenizedPrompts:
    """Prompts in memory-mapped files, in a folder that `write_prompts` wrote."""

    def __init__(self, folder: Path) -> None:
        self.facts = PromptsSummary.model_validate_json((folder / FACTS_FILE).read_bytes())  # summary of the prompts
        # of each prompt the number of tokens, that of its decoding in `facts.decodings`, and its row in the dataset, by
        # which its text is drawn; int64 of shape [n, 3]
        self.lengths: np.ndarray = np.load(folder / LENGTHS_FILE, mmap_mode="r")
        self._tokens = TokenFile(folder / TOKENS_FILE)

    def __len__(self) -> int:
        return self.facts.texts

    @property
    def columns(self) -> AnswerColumns:
        """Columns of the texts; requires at least one prompt."""
        return generation_columns(max(decoding.max_new_tokens for decoding in self.facts.decodings))

    def padded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collates prompts of one decoding, by their positions, into a batch (see `TokenFile.padded`).

        Also returns the number of tokens, decoding and row of each, int64 of shape [batch, 3], for `Generator`.
        """
        lengths = np.asarray(self.lengths[indices])
        return self._tokens.padded(indices, lengths[:, 0]), lengths

    def plan(self) -> BatchPlan:
        """Plans batches that fill `CACHE_TOKENS` with prompts and the longest texts that may follow.

        A batch takes one step per token by which its prompts differ in length, and one per token of the longest text.
        The differences may add at most an eighth of the steps.
        """
        parts = []
        for number, decoding in enumerate(self.facts.decodings):
            positions = np.flatnonzero(self.lengths[:, 1] == number)
            sent = self.lengths[positions, 0] + (decoding.max_new_tokens - 1)  # the last token is not sent
            most_apart = max(1, decoding.max_new_tokens // 8)
            parts.append((plan_batches(sent, token_budget=CACHE_TOKENS, most_apart=most_apart), positions))
        return join_plans(parts)


def write_prompts(
    folder: Path, prompts: Iterable[tuple[Sequence[int], Decoding]], *, max_length: int, rows: np.ndarray | None = None
) -> TokenizedPrompts:
    """Writes prompts to an existing folder.

    Each prompt has at least one token id, and its decoding has fewer new tokens than `max_length`. If a prompt and its
    text may have more than `max_length` tokens together, the prompt is truncated on the left, and counted. `rows` has
    the row of each prompt in its dataset, by default its position.
    """
    decodings: list[Decoding] = []
    numbers: dict[str, int] = {}
    lengths: list[tuple[int, int]] = []
    truncated = longest = 0
    digest = hashlib.sha256()
    with write_tokens(folder / TOKENS_FILE) as write:
        for ids, decoding in prompts:
            key = decoding.model_dump_json()
            if key not in numbers:
                numbers[key] = len(decodings)
                decodings.append(decoding)
                digest.update(key.encode())
            tokens = np.asarray(ids[-(max_length - decoding.max_new_tokens) :], dtype=np.int32)
            truncated += len(tokens) < len(ids)
            longest = max(longest, len(ids))
            lengths.append((len(tokens), numbers[key]))
            digest.update(tokens.tobytes() + np.asarray(lengths[-1], dtype=np.int32).tobytes())
            write(tokens)
    of_tokens = np.asarray(lengths, dtype=np.int64).reshape(-1, 2)
    np.save(folder / LENGTHS_FILE, np.column_stack([of_tokens, np.arange(len(lengths)) if rows is None else rows]))
    facts = PromptsSummary(
        texts=len(lengths), decodings=decodings, truncated=truncated, longest=longest, digest=digest.hexdigest()
    )
    (folder / FACTS_FILE).write_text(facts.model_dump_json(), encoding="utf-8")
    return TokenizedPrompts(folder)


# Tokens to check besides those of a stop string, because generated text may be tokenized differently
_TOKENS_AROUND = 2


class StopStrings:
    """Strings at which a generated text ends; empty ones are ignored.

    As in the Hugging Face backend of the lm-evaluation-harness (`MultiTokenEOSCriteria`), the last tokens are decoded
    and searched, because a stop string may be tokenized in different ways.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Any) -> None:
        self._strings, self._tokenizer = [string for string in strings if string], tokenizer
        sizes = [len(tokenizer.encode(string, add_special_tokens=False)) for string in self._strings]
        self._window = max(sizes, default=0) + _TOKENS_AROUND

    def end(self, tokens: Sequence[int]) -> bool:
        """Returns whether the last tokens of a text contain a stop string."""
        if not self._strings:
            return False
        text = self._tokenizer.decode(tokens[-self._window :])
        return any(string in text for string in self._strings)


def text_of(tokens: Sequence[int], stop: Sequence[str], tokenizer: Any, think_end: str | int | None = None) -> str:
    """Returns the text of tokens, without special ones, up to the first stop string that is not empty.

    With `think_end`, a text or token id, the result begins after the last occurrence of that, if any, and the following
    white space.
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
