"""Texts that are sent through a base model in chunks (see `dist_eval.model.backbone.Backbone.session`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from dist_eval.petals.client.outputs import picked
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.routes import RouteRecord


class TextSession(Protocol):
    """Texts of equal length so far. To be used by one thread, but for `continuations`."""

    @property
    def position(self) -> int:
        """Tokens of each text that were sent so far, without prompts."""

    @property
    def servers(self) -> int:
        """How many servers the texts pass one after the other, at least 1."""

    def step(
        self,
        input_ids: torch.Tensor,
        start: int | None = None,
        record: RouteRecord | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sends the next n tokens of the texts, of shape [rows, n]; the first step also sends the prompts.

        Whatever was sent from `start` on is forgotten; by default they follow what was sent. n may be 0, to send the
        prompts alone. Returns the outputs of the last block before the final norm, of shape [rows, n, hidden]; or only
        those that are needed: with `rows`, int64 positions in rows x n, of shape [m], they have the shape [m, hidden].
        """

    def continuations(
        self,
        input_ids: Sequence[torch.Tensor],
        record: RouteRecord | None = None,
        rows: Sequence[torch.Tensor | None] | None = None,
    ) -> Sequence[torch.Tensor]:
        """Continues the texts in several ways, none of which is kept; returns the outputs of each, as `step` does.

        May be used by several threads at a time, once something was sent.
        """

    def close(self) -> None:
        """Gives the memory of servers back."""


class RecomputedTextSession:
    """Texts that are computed from their beginning at each step: nothing is kept of them."""

    def __init__(self, hidden_states: Callable[[torch.Tensor, RouteRecord | None], torch.Tensor], rows: int) -> None:
        self._hidden_states = hidden_states
        self._ids = torch.empty(rows, 0, dtype=torch.int64)
        self._servers: dict[RouteSegment, None] = {}  # of all steps: each followed from the outputs of those before

    @property
    def position(self) -> int:
        return self._ids.shape[1]

    @property
    def servers(self) -> int:
        """See `TextSession.servers`: what is not kept needs no second one."""
        return 1

    @torch.no_grad()
    def step(
        self,
        input_ids: torch.Tensor,
        start: int | None = None,
        record: RouteRecord | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if start == 0:
            self._servers.clear()
        self._ids = torch.cat([self._ids[:, :start], input_ids.to(self._ids)], dim=1)
        return picked(self._outputs(self._ids, input_ids.shape[1], record), rows)

    @torch.no_grad()
    def continuations(
        self,
        input_ids: Sequence[torch.Tensor],
        record: RouteRecord | None = None,
        rows: Sequence[torch.Tensor | None] | None = None,
    ) -> Sequence[torch.Tensor]:
        whole = (self._outputs(torch.cat([self._ids, ids], dim=1), ids.shape[1], record) for ids in input_ids)
        return list(map(picked, whole, rows or [None] * len(input_ids)))

    def _outputs(self, input_ids: torch.Tensor, tokens: int, record: RouteRecord | None) -> torch.Tensor:
        own = RouteRecord()
        hidden = self._hidden_states(input_ids, own)
        self._servers.update(dict.fromkeys(own.route))
        if record is not None:
            record.route.extend(self._servers)
        return hidden[:, hidden.shape[1] - tokens :]

    def close(self) -> None:
        """See `TextSession.close`: there is none."""
