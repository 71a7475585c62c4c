"""The distribution that tokens are drawn from is that of transformers, and draws follow it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dist_eval.model.generation import Draws, token_probabilities
from dist_eval.results.inputs import Decoding


@pytest.mark.parametrize("top_k", [0, 1, 7, 400])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 1.0])
def test_probabilities_are_those_of_transformers(top_k: int, top_p: float) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = 3 * torch.randn(20, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = TemperatureLogitsWarper(0.7)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    expected = TopPLogitsWarper(top_p)(None, expected).softmax(dim=1)
    found = token_probabilities(logits, Decoding(max_new_tokens=1, temperature=0.7, top_k=top_k, top_p=top_p))
    torch.testing.assert_close(found, expected)


def test_draws_follow_the_probabilities_and_never_take_what_has_none() -> None:
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.3, 0.2, 0.0]], dtype=torch.float64).expand(20_000, -1)
    drawn = Draws(3, list(range(20_000))).tokens(probabilities, list(range(20_000)))
    shares = np.bincount(drawn.numpy(), minlength=6) / 20_000
    assert shares == pytest.approx([0.0, 0.5, 0.0, 0.3, 0.2, 0.0], abs=0.02)
    assert shares[[0, 2, 5]].tolist() == [0.0, 0.0, 0.0]
