"""Exact match of generated texts with references, as they are and normalized as for SQuAD."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

# names of both metrics: the share of texts that equal a reference
NORMALIZED, RAW = "exact_match", "exact_match_raw"

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Returns a text in lower case, without punctuation, articles, and extra white space.

    Source: `normalize_answer` in the official evaluation script of SQuAD v1.1 (Rajpurkar et al., 2016, "SQuAD: 100,000+
    questions for machine comprehension of text"), with its ASCII punctuation and English articles.

    Examples:
        >>> normalized(" The Eiffel  Tower.")
        'eiffel tower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, references: Sequence[str]) -> tuple[bool, bool]:
    """Returns whether a text equals a reference once both are normalized, and but for white space around them."""
    wanted = normalized(text)
    return (
        any(wanted == normalized(reference) for reference in references),
        any(text.strip() == reference.strip() for reference in references),
    )
