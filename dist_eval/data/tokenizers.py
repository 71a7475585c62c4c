"""Tokenizers: loaded without running code, hashed, and applied to texts with a single BOS."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_eval.errors import CheckpointError, one_line
from dist_eval.revisions import pinned

HAS_BOS = "the tokenizer's BOS in front already, which is not added again"
"""Describes texts that already begin with the tokenizer's BOS, in messages."""


def load_tokenizer(place: str, hint: str = "") -> Any:
    """Loads a Hugging Face tokenizer by folder or hub name; `hint` is added to that in messages."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place, revision=pinned("model", place), trust_remote_code=False)
    except Exception as error:  # OSError, ValueError, errors of tokenizers and of the hub's client
        raise CheckpointError(f"No readable tokenizer in {place}{hint}: {one_line(error)}") from error


def tokenizer_digest(tokenizer: Any) -> str:
    """Returns a hash of a Hugging Face tokenizer's vocabulary, rules and special tokens."""
    if tokenizer.is_fast:
        parts = dict(json.loads(tokenizer.backend_tokenizer.to_str()))
        for state in ("truncation", "padding"):  # set by the last call
            parts.pop(state, None)
    else:
        parts = tokenizer.get_vocab()
    kind = [
        json.dumps(parts, sort_keys=True),
        str(tokenizer.special_tokens_map),
        tokenizer.padding_side,
        tokenizer.truncation_side,
    ]
    return hashlib.sha256("\n".join(kind).encode()).hexdigest()


def encode_texts(
    tokenizer: Any, *texts: Sequence[str], begin_once: bool = True, **options: Any
) -> tuple[dict[str, Any], np.ndarray]:
    """Tokenizes texts or pairs of texts, and removes a second BOS unless `begin_once` is false.

    A text may already begin with the token that the tokenizer adds (BOS), such as a prompt for another program. The
    model would read BOS twice, unlike in its training. Returns the tokenizer's outputs by name, and which texts already
    begin with BOS, bool of shape [texts].
    """
    encoded = dict(tokenizer(*texts, return_attention_mask=False, verbose=False, **options))
    ids, begin = encoded["input_ids"], tokenizer.bos_token_id
    if not begin_once or tokenizer("a")["input_ids"][:1] != [begin]:  # the tokenizer adds no BOS
        return encoded, np.zeros(len(ids), dtype=bool)
    # other texts may map to the same token, such as an unknown word
    written = [text.lstrip().startswith(tokenizer.bos_token) for text in texts[0]]
    doubled = np.array([own[:2] == [begin, begin] for own in ids], dtype=bool) & np.array(written, dtype=bool)
    for row in np.flatnonzero(doubled):
        for of_tokens in encoded.values():
            of_tokens[row] = of_tokens[row][1:]
    return encoded, doubled


def token_ids(tokenizer: Any, texts: Sequence[str]) -> tuple[list[list[int]], np.ndarray]:
    """Returns the token ids of texts, and which texts already begin with BOS (see `encode_texts`)."""
    encoded, begun = encode_texts(tokenizer, texts)
    return encoded["input_ids"], begun
