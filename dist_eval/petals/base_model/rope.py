"""Rotary embeddings with frequencies that depend on a text's length.

LongRoPE has two sets of factors: one for texts up to the original length, and one for longer texts. Source: Ding et
al., "LongRoPE" (2024), as computed by `longrope_frequency_update` of transformers: the longest text of a call
determines the factors of all. So texts of both kinds never share a forward here, and a text that may exceed the
original length is not continued from a cache. Dynamic NTK scaling applies only beyond the positions of a config, but
such a text also changes the frequencies of those after it, unless they are reset.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from torch import nn


class RopeSwitch:
    """The lengths where a decoder's rotary embeddings change frequencies, given its `transformers` config."""

    def __init__(self, config: Any) -> None:
        parameters = getattr(config, "rope_parameters", None) or {}
        parts = [part for part in (parameters, *parameters.values()) if isinstance(part, dict)]  # for kinds of layers
        # in tokens including prompts, ascending
        self.lengths: list[int] = sorted(
            {int(part["original_max_position_embeddings"]) for part in parts if part.get("rope_type") == "longrope"}
        )

    def kind(self, tokens: int) -> int:
        """Returns a number that is equal for texts with the same frequencies; 0 for the shortest."""
        return bisect_left(self.lengths, tokens)


def dynamic_ropes(model: nn.Module) -> list[nn.Module]:
    """Returns the modules of a model whose frequencies depend on earlier texts."""
    return [module for module in model.modules() if any("dynamic" in kind for kind in _types_of(module))]


def reset_frequencies(rope: nn.Module) -> None:
    """Makes a module of `dynamic_ropes` compute the next text as if it were the first one."""
    kinds: Any = rope.rope_type
    for prefix in [f"{layer_type}_" for layer_type in kinds] if isinstance(kinds, dict) else [""]:
        original, current = (getattr(rope, f"{prefix}{name}") for name in ("original_inv_freq", "inv_freq"))
        setattr(rope, f"{prefix}inv_freq", original.to(current.device))
        setattr(rope, f"{prefix}max_seq_len_cached", rope.original_max_seq_len)


def _types_of(module: nn.Module) -> list[str]:
    kinds: Any = getattr(module, "rope_type", None) or []
    return list(kinds.values()) if isinstance(kinds, dict) else [kinds] if isinstance(kinds, str) else []


def fix_frequencies(model: nn.Module) -> None:
    """Makes a model's rotary embeddings keep their frequencies for texts of any length, without reading values."""
    for module in model.modules():
        kinds: Any = getattr(module, "rope_type", None)  # for all layers, or for each kind
        if kinds is not None:
            kept: Any = dict.fromkeys(kinds, "default") if isinstance(kinds, dict) else "default"
            module.rope_type = kept
