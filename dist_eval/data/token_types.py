"""Token types, which tell the texts of a pair apart, and mark the class token of some models.

A token file has one number for each token. For models that take types it is `id + (type + 1 << 24)`; without a type, it
is the id alone.
"""

from __future__ import annotations

import numpy as np
import torch

from dist_eval.errors import DataError

ANY_TYPE = 64
"""More types than any tokenizer has."""

_BITS = 24  # the largest vocabularies have 20


def with_types(ids: np.ndarray, types: np.ndarray, known: int) -> np.ndarray:
    """Joins the ids and types of tokens, int32 of the same shape.

    Args:
        ids: token ids, int32 of shape [tokens].
        types: their types, int32 of the same shape.
        known: number of types that the model knows.

    Raises:
        DataError: it does not know one of these.
    """
    if types.max(initial=0) >= known:
        raise DataError(
            f"The tokenizer gives the token type {types.max()}, but the model knows only {known} types: the tokenizer "
            "in its folder belongs to another model."
        )
    return (ids + ((types + 1) << _BITS)).astype(np.int32)


def ids_and_types(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns ids and types of tokens, of the same shape; no types where a token has none."""
    types = (tokens >> _BITS) - 1
    return tokens & ((1 << _BITS) - 1), None if bool((types < 0).any()) else types
