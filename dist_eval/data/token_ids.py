"""From texts to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BEGIN_THEMSELVES = "begin with the tokenizer's BOS themselves, which they have once"
"""What is said of texts that begin with the token that the tokenizer puts before every text."""


def token_ids(tokenizer: Any, *texts: Sequence[str], **options: Any) -> tuple[list[list[int]], np.ndarray]:
    """Tokenizes texts, each of which begins once.

    A text may begin with the token that a tokenizer puts before every text (BOS), such as a prompt that was written for
    another program. The model would read it twice, as in no text that it has learned from.

    Args:
        tokenizer: a Hugging Face tokenizer.
        *texts: the texts, or the parts of pairs.
        **options: further arguments of the tokenizer.

    Returns:
        The token ids of each text, and which texts begin with BOS themselves, bool of shape [texts].
    """
    ids = tokenizer(*texts, return_attention_mask=False, verbose=False, **options)["input_ids"]
    begin = tokenizer.bos_token_id
    if tokenizer("a")["input_ids"][:1] != [begin]:  # it puts none before a text
        return ids, np.zeros(len(ids), dtype=bool)
    doubled = [own[:2] == [begin, begin] for own in ids]
    return [own[twice:] for own, twice in zip(ids, doubled, strict=True)], np.array(doubled, dtype=bool)
