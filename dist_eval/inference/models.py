"""Models that answer batches of texts, whether on a swarm or in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from dist_eval.data.answers import AnswerColumns
from dist_eval.data.plan import SharedPrefix
from dist_eval.petals.client.records import RouteSegment, Traffic
from dist_eval.petals.client.routes import RouteRecord


@dataclass(frozen=True)
class SendOptions:
    """Options for the computation of a batch."""

    audited: bool = False  # whether other servers, if any, recompute it
    avoided: Sequence[RouteSegment] = ()  # segments to avoid if there is another route
    shared: SharedPrefix | None = None  # the shared prefix of its texts; None for a plain forward


ANY_ROUTE = SendOptions()
"""The default options."""


class HostedModel:
    """A model on a swarm, in this process (the default), or around another model."""

    _host: HostedModel | None = None  # the wrapped model

    @property
    def retries(self) -> int:
        """Number of requests repeated so far."""
        return 0 if self._host is None else self._host.retries

    def traffic(self) -> Traffic | None:
        """Returns the traffic with a swarm so far, for `results.json`; None without a swarm."""
        return None if self._host is None else self._host.traffic()

    def notice(self) -> str:
        """Says what the model waits for; empty if it does not wait."""
        return "" if self._host is None else self._host.notice()

    def exclude(self, servers: Iterable[str]) -> None:
        """Sends no further requests to servers, given by peer id."""
        if self._host is not None:
            self._host.exclude(servers)

    def stop_sending(self) -> None:
        """Refuses batches that still wait for the rate limit, with a `NotSentError`."""
        if self._host is not None:
            self._host.stop_sending()

    def close(self) -> None:
        """Closes connections and processes."""
        if self._host is not None:
            self._host.close()


class AnsweringModel(HostedModel, ABC):
    """A model that answers batches (see `dist_eval.model.classifier.Classifier`)."""

    columns: AnswerColumns  # of the answer for a text

    @torch.no_grad()
    def answer(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        options: SendOptions = ANY_ROUTE,
        record: RouteRecord | None = None,
    ) -> dict[str, torch.Tensor]:
        """Computes the columns for a batch, by name, of shape [batch, ...], on the CPU.

        They are not checked for finite values. Raises a `ModelOutputError` if the outputs have the wrong shape.

        Args:
            input_ids: int64 of shape [batch, length], padded on the right with any id.
            lengths: facts of each text (see `dist_eval.inference.forward.TextSource.padded`).
            options: constrains the route through a swarm.
            record: receives the route.
        """
        return self._answer(input_ids, lengths, options, record or RouteRecord())

    @abstractmethod
    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        """See `answer`."""
