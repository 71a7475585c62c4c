"""The attention caches of sessions on servers: keys and values of each block, in the block's own shapes.

The shapes follow from the model's config alone, by running each layer on the meta device. So grouped queries, the
latents of multi-head latent attention and other kinds of caches are counted as transformers keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.rope import fix_frequencies
from dist_eval.petals.server.blocks import Block, keep_layer


class BlockCache(NamedTuple):
    """Shapes of a block's cache."""

    keys: tuple[int, int]  # heads and width for a token
    values: tuple[int, int]
    window: int | None  # tokens that a token attends to, including itself; None for all

    @property
    def token_numbers(self) -> int:
        """Numbers that it keeps per token."""
        return sum(heads * width for heads, width in (self.keys, self.values))

    def shapes(self, rows: int, max_length: int, *, rolls_back: bool) -> list[tuple[int, int, int, int]]:
        """Returns the shapes of keys and values for a session of `rows` texts of up to `max_length` tokens.

        With `rolls_back`, texts may be continued from before their end, which requires keeping all tokens.
        """
        kept = max_length if rolls_back or self.window is None else min(max_length, self.window - 1)
        return [(rows, heads, kept, width) for heads, width in (self.keys, self.values)]


NO_CACHE = BlockCache((1, 1), (1, 1), None)
"""Placeholder for recurrent blocks, which have no sessions: Petals divides by the size of a token."""


def block_caches(architecture: Architecture) -> list[BlockCache | None]:
    """Returns the cache shapes of each block of a model; None for recurrent ones, whose states are not per token."""
    try:
        kinds: Sequence[Any] = DynamicCache(config=architecture.config).layers
    except Exception:  # the model has a cache of its own
        kinds = [None] * architecture.config.num_hidden_layers
    with torch.device("meta"):
        model = architecture.base_class(architecture.config).eval()
        fix_frequencies(model)
        token = torch.zeros(1, 1, architecture.config.hidden_size, dtype=torch.get_default_dtype())
        layers: Any = model.get_submodule(architecture.layers)
        return [
            _cache_of(model, architecture, layer, index, token, kind)
            for index, (layer, kind) in enumerate(zip(list(layers), kinds, strict=True))
        ]


@torch.inference_mode()
def _cache_of(
    model: Any, architecture: Architecture, layer: Any, index: int, token: torch.Tensor, kind: Any
) -> BlockCache | None:
    keep_layer(model, architecture, layer, index)
    kept: Any = DynamicLayer()
    block = Block(model, architecture.layers, architecture.config.num_attention_heads)
    try:
        try:
            block(token, cache=Cache(layers=[kept]))
        except NotImplementedError:  # its experts count tokens, which needs memory with any values
            with torch.device("cpu"):
                block.to_empty(device="cpu")(token.new_zeros(token.shape, device="cpu"), cache=Cache(layers=[kept]))
            block.to("meta")
        keys, values = ((tensor.shape[1], tensor.shape[3]) for tensor in (kept.keys, kept.values))
    except (AttributeError, ValueError):
        return None
    return BlockCache(keys, values, kind.sliding_window if isinstance(kind, DynamicSlidingWindowLayer) else None)


class SessionLayer(DynamicLayer):
    """A layer's keys and values in memory that was allocated for a whole session, or for a sliding window of it.

    Args:
        keys: tensor of shape [batch, heads, n, key_width]; n is the most tokens of a text, or the window minus one.
        values: tensor of shape [batch, heads, n, value_width].
        length: tokens of each text so far.
        window: tokens that a token attends to, including itself; None for all.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, length: int, window: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keys, self._values, self._length, self._most = keys, values, length, keys.shape[-2]
        self.is_sliding = window is not None and self._most == window - 1

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds keys and values, of shape [batch, heads, n, width], and returns all that the new tokens attend to."""
        start, self._length = self._length, self._length + key_states.shape[-2]
        if self.is_sliding:
            kept = min(start, self._most)
            return self._slide(self._keys, key_states, kept), self._slide(self._values, value_states, kept)
        self._keys[..., start : self._length, :] = key_states
        self._values[..., start : self._length, :] = value_states
        return self._keys[..., : self._length, :], self._values[..., : self._length, :]

    def _slide(self, window: torch.Tensor, states: torch.Tensor, kept: int) -> torch.Tensor:
        """Appends states to the kept ones, keeps the last ones, and returns all of them."""
        seen = torch.cat([window[..., :kept, :], states.to(window)], dim=-2)
        last = min(seen.shape[-2], self._most)
        window[..., :last, :] = seen[..., seen.shape[-2] - last :, :]
        return seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns how many tokens the next ones attend to, including themselves, and how many precede these."""
        kept = min(self._length, self._most)
        return kept + query_length, self._length - kept

    def get_seq_length(self) -> int:
        """Returns the number of tokens of each text so far."""
        return self._length
