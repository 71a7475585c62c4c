"""Models on shared swarms, beside those that run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dist_eval import AutoDistributedModelForCausalLM, PrivateSwarm

LENGTHS = (20, 13, 17)


@contextmanager
def both(swarm: PrivateSwarm, auto: Any = AutoDistributedModelForCausalLM, **settings: Any) -> Iterator[Any]:
    """Opens a model on a swarm, and the language model in this process."""
    with auto.from_pretrained(
        swarm.model, initial_peers=swarm.initial_peers, dht_prefix=swarm.dht_prefix, **settings
    ) as model:
        yield model, AutoModelForCausalLM.from_pretrained(swarm.model).eval()


def texts(seed: int = 1) -> list[torch.Tensor]:
    """Token ids of texts of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, 128, (length,), generator=generator) for length in LENGTHS]


def padded(rows: list[torch.Tensor], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns texts as a batch, and its mask."""
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=side)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side)
    return ids, mask
