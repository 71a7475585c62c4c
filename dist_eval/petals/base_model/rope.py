"""Rotary embeddings whose frequencies depend on a text's length.

LongRoPE has two sets of factors: one for texts up to the original length, one for longer ones. Source: Ding et al.,
"LongRoPE" (2024), as `longrope_frequency_update` of transformers computes it: the longest text of a call decides for
all of them. So texts of both kinds never share a forward here, and a text that may become longer than the original
length is not continued from a cache. Dynamic NTK scaling begins beyond the positions of a config, where no text is.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from torch import nn


class RopeSwitch:
    """The lengths beyond which a model's rotary embeddings have other frequencies.

    Args:
        config: the `transformers` config of a decoder.
    """

    def __init__(self, config: Any) -> None:
        parameters = getattr(config, "rope_parameters", None) or {}
        parts = [part for part in (parameters, *parameters.values()) if isinstance(part, dict)]  # of kinds of layers
        # tokens, prompts included; ascending
        self.lengths: list[int] = sorted(
            {int(part["original_max_position_embeddings"]) for part in parts if part.get("rope_type") == "longrope"}
        )

    def kind(self, tokens: int) -> int:
        """Returns a number that is equal for texts with the same frequencies; 0 for the shortest."""
        return bisect_left(self.lengths, tokens)


def fix_frequencies(model: nn.Module) -> None:
    """Has a model's rotary embeddings keep their frequencies for texts of any length, which need no values then."""
    for module in model.modules():
        kinds: Any = getattr(module, "rope_type", None)  # of all layers, or of each kind of them
        if kinds is not None:
            kept: Any = dict.fromkeys(kinds, "default") if isinstance(kinds, dict) else "default"
            module.rope_type = kept
