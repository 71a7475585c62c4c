"""Loading tokenizers, none of which runs code: no vocabulary of transformers 5 is a pickle."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dist_eval.errors import CheckpointError, one_line

FILE = "tokenizer.json"


def load_tokenizer(place: str, hint: str = "") -> Any:
    """Loads a Hugging Face tokenizer.

    Args:
        place: folder or hub name.
        hint: added to the place in messages.

    Raises:
        CheckpointError: there is no readable tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except Exception as error:  # OSError, ValueError, errors of tokenizers and of the hub's client
        raise CheckpointError(f"There is no readable tokenizer in {place}{hint}: {one_line(error)}") from error


def tokenizer_digest(tokenizer: Any) -> str:
    """Returns a hash of what defines a Hugging Face tokenizer: vocabulary, rules and special tokens."""
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
