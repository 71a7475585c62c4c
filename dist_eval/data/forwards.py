"""Texts that share a forward: a language model is sent a text without its last token, which is only scored."""

from __future__ import annotations

import numpy as np


def distinct_forwards(input_ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the forwards that a batch of texts needs.

    Args:
        input_ids: token ids, integers of shape [batch, length], padded on the right.
        lengths: tokens of each text, at least 2, integers of shape [batch].

    Returns:
        The distinct texts without their last token, in order of appearance, of shape [forwards, longest]; and the
        forward of each text, int64 of shape [batch].
    """
    numbers: dict[bytes, int] = {}
    which = np.empty(len(lengths), dtype=np.int64)
    for row, length in enumerate(lengths):
        which[row] = numbers.setdefault(input_ids[row, : length - 1].tobytes(), len(numbers))
    _, first = np.unique(which, return_index=True)
    return np.ascontiguousarray(input_ids[first, : int(lengths[first].max(initial=2)) - 1]), which
