"""Deep prompts that clients have sent, and that digests stand for from then on (see `deep_prompts` of the client)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch


class KeptPrompts:
    """The prompts of blocks, on their device and in their dtype; the least recently used ones are forgotten first.

    Args:
        tokens: most tokens of all of them.
    """

    def __init__(self, tokens: int) -> None:
        self._left, self._kept = tokens, OrderedDict[bytes, torch.Tensor]()

    def exchange(self, digests: Sequence[bytes], prompts: Sequence[torch.Tensor | None]) -> list[torch.Tensor] | None:
        """Keeps prompts, each of shape [1, pre_seq_len, hidden]; where there are none, finds those that are kept.

        Returns:
            Those of all blocks; None if one of them is not here.
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
        self._kept[digest] = prompt.clone()  # what came from a handler lies in memory that it shares
        self._left -= prompt.shape[1]
        while self._left < 0:
            self._left += self._kept.popitem(last=False)[1].shape[1]
