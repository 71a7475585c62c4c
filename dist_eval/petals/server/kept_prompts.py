"""Keeps clients' deep prompts, which later requests replace by digests (see `deep_prompts` of the client)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import torch

from dist_eval.petals.client.deep_prompts import digests_of


async def require_digests(prompts: torch.Tensor | None, digests: Sequence[bytes]) -> None:
    """Raises a `ValueError` unless deep prompts match their digests; does nothing if either is missing."""
    if (
        digests
        and prompts is not None
        and prompts.numel()
        and await asyncio.to_thread(digests_of, prompts) != [*digests]
    ):
        raise ValueError("Received deep prompts that do not match their digests")


class KeptPrompts:
    """The prompts of blocks, at most `tokens` tokens in total, on their device and in their dtype.

    The least recently used ones are dropped first.
    """

    def __init__(self, tokens: int) -> None:
        self._left, self._kept = tokens, OrderedDict[bytes, torch.Tensor]()

    def exchange(self, digests: Sequence[bytes], prompts: Sequence[torch.Tensor | None]) -> list[torch.Tensor] | None:
        """Keeps prompts, each of shape [1, pre_seq_len, hidden], and finds the kept ones for each None.

        Returns the prompts of all blocks; None if any is missing.
        """
        found: list[torch.Tensor] = []
        for digest, prompt in zip(digests, prompts, strict=True):
            if digest in self._kept:
                self._kept.move_to_end(digest)
            elif prompt is None:
                return None
            else:
                self._keep(digest, prompt)
            found.append(self._kept[digest])
        return found

    def _keep(self, digest: bytes, prompt: torch.Tensor) -> None:
        self._kept[digest] = prompt.clone()  # the handler's tensor is in shared memory
        self._left -= prompt.shape[1]
        while self._left < 0:
            self._left += self._kept.popitem(last=False)[1].shape[1]
