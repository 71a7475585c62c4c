"""Inputs of a block for a batch: hidden states, or the token ids from which those of the first block are computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch


@dataclass
class TokenIds:
    """A batch as token ids, from which the first block's server, or this process, computes the inputs."""

    ids: torch.Tensor  # int64 of shape [batch, length]
    prompts: torch.Tensor | None  # soft prompts before each text, float32 of shape [pre_seq_len, hidden], or None
    # computes the first block's inputs, float32 of shape [batch, pre_seq_len + length, hidden]
    embed: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
    width: int  # width of hidden states


@dataclass
class Inputs:
    """Inputs of a block for a batch."""

    tokens: TokenIds | None  # if these are the first block's inputs and servers may get ids
    batch: int  # number of texts
    length: int  # tokens of each text, including padding and prompts
    width: int  # width of hidden states
    _hidden: torch.Tensor | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, given: torch.Tensor | TokenIds) -> Inputs:
        """Wraps hidden states, of shape [batch, length, hidden], or token ids."""
        if isinstance(given, TokenIds):
            batch, length = given.ids.shape
            return cls(given, batch, length + (0 if given.prompts is None else len(given.prompts)), given.width)
        batch, length, width = given.shape
        return cls(None, batch, length, width, given)

    @property
    def size(self) -> int:
        """Number of tokens, including padding and prompts."""
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

    def first(self, length: int) -> Inputs:
        """Returns the first tokens of each text."""
        before = self.length - self._own_tokens
        if self.tokens is None or length <= before:
            return Inputs.of(self.hidden()[:, :length])
        return Inputs.of(replace(self.tokens, ids=self.tokens.ids[:, : length - before]))

    def chunks(self, length: int) -> Sequence[Inputs]:
        """Splits each text into parts of `length` tokens."""
        before = self.length - self._own_tokens
        if self.tokens is None or not before < min(length, self.length):  # ids follow prompts
            return [Inputs.of(part) for part in self.hidden().split(length, dim=1)] if self.length else []
        sizes = [len(part) for part in torch.arange(self.length).split(length)]
        ids = self.tokens.ids.split([sizes[0] - before, *sizes[1:]], dim=1)
        further = [replace(self.tokens, ids=part, prompts=None) for part in ids[1:]]
        return list(map(Inputs.of, [replace(self.tokens, ids=ids[0]), *further]))

    def restored(self, outputs: torch.Tensor) -> torch.Tensor:
        """Moves outputs to the dtype and device of the hidden states, or to float32 and the device of the ids."""
        return outputs.to(self.hidden()) if self.tokens is None else outputs.to(self.tokens.ids.device, torch.float32)

    @staticmethod
    def joined(parts: Sequence[Inputs]) -> Inputs:
        """Joins consecutive parts of texts, without prompts."""
        tokens = [part.tokens for part in parts if part.tokens is not None and part.tokens.prompts is None]
        if len(tokens) < len(parts):
            return Inputs.of(torch.cat([part.hidden() for part in parts], dim=1))
        return Inputs.of(replace(tokens[0], ids=torch.cat([one.ids for one in tokens], dim=1)))

    @property
    def _own_tokens(self) -> int:
        """How many tokens of a text are ids, not prompts."""
        return 0 if self.tokens is None else self.tokens.ids.shape[1]

    def tensor_split(self, parts: int) -> Sequence[Inputs]:
        """Splits the texts as `torch.tensor_split` would."""
        if self.tokens is None:
            return [Inputs.of(part) for part in self.hidden().tensor_split(parts)]
        return [Inputs.of(replace(self.tokens, ids=part)) for part in self.tokens.ids.tensor_split(parts)]
