"""Sends texts through a base model in chunks (see `dist_eval.model.backbone.Backbone.session`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from dist_eval.petals.client.outputs import picked
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.routes import RouteRecord


class TextSession(Protocol):
    """Texts of equal length so far. For one thread, except `continuations`."""

    @property
    def servers(self) -> int:
        """Number of servers that the texts pass one after another, at least 1."""

    def step(
        self,
        input_ids: torch.Tensor,
        start: int | None = None,
        record: RouteRecord | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sends the next n tokens of the texts, of shape [rows, n]; the first step also sends the prompts.

        They replace all tokens from `start` on; by default they follow the tokens already sent. n may be 0, to send the
        prompts alone. Returns the outputs of the last block before the final norm, of shape [rows, n, hidden]. With
        `rows`, int64 positions in rows x n, of shape [m], returns only these, of shape [m, hidden].
        """

    def continuations(
        self,
        input_ids: Sequence[torch.Tensor],
        record: RouteRecord | None = None,
        rows: Sequence[torch.Tensor | None] | None = None,
    ) -> Sequence[torch.Tensor]:
        """Continues the texts in several ways without keeping any; returns the outputs of each, as `step` does.

        Several threads may use it at a time, once something was sent.
        """

    def close(self) -> None:
        """Frees the servers' memory."""


class RecomputedTextSession:
    """Texts that each step computes from the start: nothing is cached."""

    def __init__(self, hidden_states: Callable[[torch.Tensor, RouteRecord | None], torch.Tensor], rows: int) -> None:
        self._hidden_states = hidden_states
        self._ids = torch.empty(rows, 0, dtype=torch.int64)
        self._servers: dict[RouteSegment, None] = {}  # of all steps, because each depends on the steps before

    @property
    def servers(self) -> int:
        """See `TextSession.servers`: 1, because nothing is cached on servers."""
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
        """See `TextSession.close`: there is nothing to free."""
