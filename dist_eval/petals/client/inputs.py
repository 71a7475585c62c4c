"""What is sent for a batch: inputs of a block, or the token ids of which those of the first block are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch


@dataclass
class TokenIds:
    """A batch as token ids, from which the server of the first block, or this process, computes its inputs."""

    ids: torch.Tensor  # int64 of shape [batch, length]
    prompts: torch.Tensor | None  # soft prompts before each text, float32 of shape [pre_seq_len, hidden], or None
    # computes the first block's inputs, float32 of shape [batch, pre_seq_len + length, hidden]
    embed: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
    width: int  # of hidden states


@dataclass
class Inputs:
    """Inputs of a block for a batch.

    Attributes:
        tokens: of what they are made, if they are those of the first block and servers may be sent ids.
        batch: number of texts.
        length: tokens of each, with padding and prompts.
        width: of hidden states.
    """

    tokens: TokenIds | None
    batch: int
    length: int
    width: int
    _hidden: torch.Tensor | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, given: torch.Tensor | TokenIds) -> Inputs:
        """Returns those that hidden states, of shape [batch, length, hidden], or token ids stand for."""
        if isinstance(given, TokenIds):
            batch, length = given.ids.shape
            return cls(given, batch, length + (0 if given.prompts is None else len(given.prompts)), given.width)
        batch, length, width = given.shape
        return cls(None, batch, length, width, given)

    @property
    def size(self) -> int:
        """Tokens, counting padding and prompts."""
        return self.batch * self.length

    @property
    def shape(self) -> torch.Size:
        """The shape of the hidden states."""
        return torch.Size((self.batch, self.length, self.width))

    @torch.no_grad()
    def hidden(self) -> torch.Tensor:
        """Returns the hidden states; ids are embedded at the first call. Thread-safe."""
        with self._lock:
            if self._hidden is None:
                assert self.tokens is not None
                self._hidden = self.tokens.embed(self.tokens.ids, self.tokens.prompts)
            return self._hidden

    def tensor_split(self, parts: int) -> Sequence[Inputs]:
        """Splits the texts as `torch.tensor_split` would."""
        if self.tokens is None:
            return [Inputs.of(part) for part in self.hidden().tensor_split(parts)]
        return [Inputs.of(replace(self.tokens, ids=part)) for part in self.tokens.ids.tensor_split(parts)]
