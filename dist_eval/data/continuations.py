"""Continuations to be scored, each after its context: token ids in a file that ranks map.

The last token of a text is only scored, so texts that differ in it alone share a forward. They are planned together,
and each forward is sent once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dist_eval.data.plan import BatchPlan, expand_plan
from dist_eval.data.shared_prefixes import CommonTokens, Prefixes, plan_with_shared_prefixes
from dist_eval.data.token_file import TokenFile, write_tokens
from dist_eval.results.inputs import ContinuationsSummary


def distinct_forwards(input_ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct forwards that a batch of texts needs, and the forward of each text, int64 of shape [batch].

    The forwards are the distinct texts without their last token, in order of appearance, of shape [forwards, longest].
    `input_ids` are integers of shape [batch, length], padded on the right. `lengths` are the tokens of each text, at
    least 2, integers of shape [batch].
    """
    numbers: dict[bytes, int] = {}
    which = np.empty(len(lengths), dtype=np.int64)
    for row, length in enumerate(lengths):
        which[row] = numbers.setdefault(input_ids[row, : length - 1].tobytes(), len(numbers))
    _, first = np.unique(which, return_index=True)
    return np.ascontiguousarray(input_ids[first, : int(lengths[first].max(initial=2)) - 1]), which


TOKENS_FILE, LENGTHS_FILE, FORWARDS_FILE, FACTS_FILE = "tokens.arrow", "lengths.npy", "forwards.npy", "facts.json"
COMMON_FILE = "common.npy"
FILES = (TOKENS_FILE, LENGTHS_FILE, FORWARDS_FILE, FACTS_FILE, COMMON_FILE)
"""The files that `write_continuations` writes."""

_DIGEST_BYTES = 16


class TokenizedContinuations:
    """Contexts and continuations in memory-mapped files, in a folder that `write_continuations` wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # summary of the continuations
        self.facts = ContinuationsSummary.model_validate_json((folder / FACTS_FILE).read_bytes())
        # number of tokens of each context, and of context and continuation together, int32 of shape [n, 2]
        self.lengths: np.ndarray = np.load(folder / LENGTHS_FILE, mmap_mode="r")
        # the forward of each text, int32 of shape [n]
        self.forward_of: np.ndarray = np.load(folder / FORWARDS_FILE, mmap_mode="r")
        self._tokens = TokenFile(folder / TOKENS_FILE)

    def __len__(self) -> int:
        return self.facts.texts

    def padded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collates texts, by their positions, into a batch (see `TokenFile.padded`), with their rows of `lengths`."""
        lengths = np.asarray(self.lengths[indices], dtype=np.int64)
        return self._tokens.padded(indices, lengths[:, 1]), lengths

    def plan(self, token_budget: int, cache_tokens: int = 0) -> BatchPlan:
        """Plans batches that fill a token budget with distinct forwards (see `plan_with_shared_prefixes`)."""
        lengths = np.empty(self.facts.forwards, dtype=np.int64)
        lengths[self.forward_of] = np.asarray(self.lengths[:, 1]) - 1
        unused, text_of = lengths.copy(), lengths.copy()
        np.minimum.at(unused, self.forward_of, np.asarray(self.lengths[:, 0]) - 1)
        text_of[self.forward_of] = np.arange(len(self))
        prefixes = Prefixes(
            np.load(self._folder / COMMON_FILE),
            unused,
            lambda forward, size: self._tokens.input_ids(int(text_of[forward]))[:size],
        )
        plan = plan_with_shared_prefixes(
            lengths, token_budget=token_budget, cache_tokens=cache_tokens, prefixes=prefixes
        )
        return expand_plan(plan, np.asarray(self.forward_of))


def write_continuations(
    folder: Path, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], *, max_length: int
) -> TokenizedContinuations:
    """Writes contexts and continuations to an existing folder.

    `pairs` are the token ids of each context and its continuation, at least one each; the continuation is shorter than
    `max_length`. If both together are longer, they are truncated on the left, and counted.
    """
    numbers: dict[bytes, int] = {}
    forward_of: list[int] = []
    lengths: list[tuple[int, int]] = []
    truncated = longest = 0
    digest, forwards, common = hashlib.sha256(), CommonTokens(), list[int]()
    with write_tokens(folder / TOKENS_FILE) as write:
        for context, continuation in pairs:
            tokens = np.asarray([*context, *continuation], dtype=np.int32)
            truncated += len(tokens) > max_length
            longest = max(longest, len(tokens))
            tokens = tokens[-max_length:]
            forward = hashlib.blake2b(tokens[:-1].tobytes(), digest_size=_DIGEST_BYTES).digest()
            if forward not in numbers:
                common.append(forwards.add(tokens[:-1]) if len(context) + len(continuation) <= max_length else -1)
            forward_of.append(numbers.setdefault(forward, len(numbers)))
            lengths.append((len(tokens) - len(continuation), len(tokens)))
            digest.update(tokens.tobytes() + np.asarray(lengths[-1], dtype=np.int32).tobytes())
            write(tokens)
    np.save(folder / LENGTHS_FILE, np.asarray(lengths, dtype=np.int32).reshape(-1, 2))
    np.save(folder / FORWARDS_FILE, np.asarray(forward_of, dtype=np.int32))
    np.save(folder / COMMON_FILE, np.asarray(common, dtype=np.int32))
    facts = ContinuationsSummary(
        texts=len(lengths),
        forwards=len(numbers),
        saved=len(lengths) - len(numbers),
        truncated=truncated,
        longest=longest,
        max_length=max_length,
        digest=digest.hexdigest(),
    )
    (folder / FACTS_FILE).write_text(facts.model_dump_json(), encoding="utf-8")
    return TokenizedContinuations(folder)
