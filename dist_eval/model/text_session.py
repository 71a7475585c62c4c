"""Texts that are sent through a base model in chunks (see `dist_eval.model.backbone.Backbone.session`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dist_eval.data.answers import RouteSegment
from dist_eval.swarm.routes import RouteRecord

if TYPE_CHECKING:
    from dist_eval.swarm.inference_session import InferenceSession


class TextSession(ABC):
    """Texts of equal length so far. To be used by one thread, but for `continuations`, as a context."""

    def __enter__(self) -> TextSession:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    @abstractmethod
    def position(self) -> int:
        """Tokens of each text that were sent so far, without prompts."""

    @property
    @abstractmethod
    def servers(self) -> int:
        """How many servers the texts pass one after the other, at least 1."""

    @abstractmethod
    def step(
        self, input_ids: torch.Tensor, start: int | None = None, record: RouteRecord | None = None
    ) -> torch.Tensor:
        """Sends the next tokens of the texts; the first step also sends the prompts.

        Args:
            input_ids: int64 of shape [rows, n]; n may be 0, to send the prompts alone.
            start: position of the first of these tokens: whatever was sent from there on is forgotten. By default they
                follow what was sent.
            record: records the route through a swarm.

        Returns:
            Outputs of the last block before the final norm for these tokens, of shape [rows, n, hidden].

        Raises:
            EvaluationError: there is no answer.
        """

    @abstractmethod
    def continuations(
        self, input_ids: Sequence[torch.Tensor], record: RouteRecord | None = None
    ) -> Sequence[torch.Tensor]:
        """Continues the texts in several ways, none of which is kept. May be used by several threads at a time.

        Args:
            input_ids: int64 of shape [rows, n] for each way; something was sent before.
            record: records the route through a swarm.

        Returns:
            For each way the outputs of the last block before the final norm, of shape [rows, n, hidden].

        Raises:
            EvaluationError: there is no answer.
        """

    @abstractmethod
    def close(self) -> None:
        """Gives the memory of servers back."""


class SwarmTextSession(TextSession):
    """Texts whose attention caches are on servers.

    Args:
        session: sends to them.
        embedded: returns the first block's inputs for token ids and prompts.
        prompts: float32 of shape [pre_seq_len, hidden], or None.
    """

    def __init__(
        self,
        session: InferenceSession,
        embedded: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
        prompts: torch.Tensor | None,
    ) -> None:
        self._session, self._embedded, self._prompts = session, embedded, prompts
        self._prompt_tokens = 0 if prompts is None else len(prompts)

    @property
    def position(self) -> int:
        """See `TextSession.position`."""
        return max(0, self._session.position - self._prompt_tokens)

    @property
    def servers(self) -> int:
        """See `TextSession.servers`."""
        return self._session.servers

    @torch.no_grad()
    def step(
        self, input_ids: torch.Tensor, start: int | None = None, record: RouteRecord | None = None
    ) -> torch.Tensor:
        """See `TextSession.step`."""
        is_first = self._session.position < self._prompt_tokens
        hidden = self._embedded(input_ids, self._prompts if is_first else None)
        place = None if start is None or is_first else start + self._prompt_tokens
        return self._session.step(hidden, place, record)[:, hidden.shape[1] - input_ids.shape[1] :]

    @torch.no_grad()
    def continuations(
        self, input_ids: Sequence[torch.Tensor], record: RouteRecord | None = None
    ) -> Sequence[torch.Tensor]:
        """See `TextSession.continuations`: servers work on different ones at a time."""
        return self._session.continuations([self._embedded(ids, None) for ids in input_ids], record)

    def close(self) -> None:
        """See `TextSession.close`."""
        self._session.close()


class RecomputedTextSession(TextSession):
    """Texts that are computed from their beginning at each step: nothing is kept of them."""

    def __init__(self, hidden_states: Callable[[torch.Tensor, RouteRecord | None], torch.Tensor], rows: int) -> None:
        self._hidden_states = hidden_states
        self._ids = torch.empty(rows, 0, dtype=torch.int64)
        self._servers: dict[RouteSegment, None] = {}  # of all steps: each followed from the outputs of those before

    @property
    def position(self) -> int:
        """See `TextSession.position`."""
        return self._ids.shape[1]

    @property
    def servers(self) -> int:
        """See `TextSession.servers`: what is not kept needs no second one."""
        return 1

    @torch.no_grad()
    def step(
        self, input_ids: torch.Tensor, start: int | None = None, record: RouteRecord | None = None
    ) -> torch.Tensor:
        """See `TextSession.step`."""
        if start == 0:
            self._servers.clear()
        self._ids = torch.cat([self._ids[:, :start], input_ids.to(self._ids)], dim=1)
        return self._outputs(self._ids, input_ids.shape[1], record)

    @torch.no_grad()
    def continuations(
        self, input_ids: Sequence[torch.Tensor], record: RouteRecord | None = None
    ) -> Sequence[torch.Tensor]:
        """See `TextSession.continuations`."""
        return [self._outputs(torch.cat([self._ids, ids], dim=1), ids.shape[1], record) for ids in input_ids]

    def _outputs(self, input_ids: torch.Tensor, tokens: int, record: RouteRecord | None) -> torch.Tensor:
        """Returns the outputs for the last tokens."""
        own = RouteRecord()
        hidden = self._hidden_states(input_ids, own)
        self._servers.update(dict.fromkeys(own.route))
        if record is not None:
            record.route.extend(self._servers)
        return hidden[:, hidden.shape[1] - tokens :]

    def close(self) -> None:
        """See `TextSession.close`: there is none."""
