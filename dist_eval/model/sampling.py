"""The choice of the next token: the likeliest one, or one that is drawn from the model's distribution."""

from __future__ import annotations

import numpy as np
import torch

from dist_eval.results.inputs import Decoding


def token_probabilities(logits: torch.Tensor, decoding: Decoding) -> torch.Tensor:
    """Computes the distribution that tokens are drawn from.

    Temperature, top k and top p apply in this order, as in `transformers`. Among equal logits at the limit of top k all
    are kept. Top p (nucleus sampling) keeps the fewest tokens, the likeliest first, whose probabilities add up to it;
    source: Holtzman et al. (2020), "The curious case of neural text degeneration", section 3.1.
    """
    scaled = logits.to(torch.float64) / decoding.temperature
    if 0 < decoding.top_k < scaled.shape[1]:
        limit = scaled.topk(decoding.top_k, dim=1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < limit, -torch.inf)
    probabilities = scaled.softmax(dim=1)
    if decoding.top_p < 1.0:
        sorted_ones, order = probabilities.sort(dim=1, descending=True, stable=True)
        before = sorted_ones.cumsum(dim=1) - sorted_ones
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= decoding.top_p)
        probabilities = probabilities.masked_fill(dropped, 0.0)
        probabilities = probabilities / probabilities.sum(dim=1, keepdim=True)
    return probabilities


class Draws:
    """Random numbers of some texts, each from a generator of its own.

    So what is drawn for a text depends on the seed and on its position, not on the batch or the rank that it is in.
    """

    def __init__(self, seed: int, positions: list[int]) -> None:
        self._generators = [np.random.default_rng([seed, position]) for position in positions]

    def tokens(self, probabilities: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Draws one token for some of the texts, from probabilities of shape [n, vocabulary]."""
        sums = probabilities.cumsum(dim=1)
        uniform = torch.tensor([[self._generators[row].random()] for row in rows], dtype=torch.float64)
        found = torch.searchsorted(sums, uniform.to(sums) * sums[:, -1:], right=True).squeeze(1)
        # a draw that rounding has moved to the very end belongs to the last token that can be drawn
        last = probabilities.shape[1] - 1 - probabilities.flip(1).gt(0).int().argmax(dim=1)
        return torch.minimum(found, last)
