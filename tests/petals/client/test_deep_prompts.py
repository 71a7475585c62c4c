"""Deep prompts of requests; `test_chain.py` sends them to servers."""

from __future__ import annotations

import torch

from dist_eval.petals.client.deep_prompts import RecentPrompts


def test_prompts_are_found_again_until_they_change() -> None:
    recent, one, other = RecentPrompts(), torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)
    found = recent.of(one)
    assert recent.of(other) is not found
    assert recent.of(one) is found
    assert recent.of(one.view(2, 3, 4)) is found
    one += 1
    assert recent.of(one) is not found
    assert recent.of(None).tensor is None
