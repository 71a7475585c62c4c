"""A base model without a head: token ids → the last block's outputs, on a swarm or in this process."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from dist_eval.data.answers import AnswerColumns, RouteSegment
from dist_eval.data.plan import SharedBeginning
from dist_eval.data.sharing_costs import CACHE_TOKENS, rows_in_cache
from dist_eval.errors import ModelOutputError, NoCacheError
from dist_eval.model.text_session import TextSession
from dist_eval.results.work import Traffic
from dist_eval.swarm.routes import ANY_ROUTE, RouteRecord, SendOptions
from dist_eval.swarm.session_room import NO_ROOM, SessionRoom


class HostedModel:
    """A model that a swarm hosts, or this process, or that wraps another one: by default it is in this process."""

    _host: HostedModel | None = None  # the one that it wraps

    @property
    def retries(self) -> int:
        """Requests that had to be repeated so far."""
        return 0 if self._host is None else self._host.retries

    def traffic(self) -> Traffic | None:
        """Returns the traffic with a swarm so far, for `results.json`; None without a swarm."""
        return None if self._host is None else self._host.traffic()

    def notice(self) -> str:
        """Returns a message about what the model waits for; empty if it does not wait."""
        return "" if self._host is None else self._host.notice()

    def exclude(self, servers: Iterable[str]) -> None:
        """Sends no further requests to servers, given by peer id."""
        if self._host is not None:
            self._host.exclude(servers)

    def close(self) -> None:
        """Closes connections and processes."""
        if self._host is not None:
            self._host.close()


class Backbone(HostedModel, ABC):
    """A base model without a head."""

    config: Any  # its `transformers` config
    final_norm: nn.Module  # after the last block
    word_embeddings: nn.Embedding

    @abstractmethod
    def hidden_states(
        self,
        input_ids: torch.Tensor,
        prompts: torch.Tensor | None,
        deep_prompts: torch.Tensor | None,
        *,
        avoided: Sequence[RouteSegment] = (),
        record: RouteRecord | None = None,
    ) -> torch.Tensor:
        """Runs the base model; differentiable in the prompts.

        Args:
            input_ids: int64 of shape [batch, length].
            prompts: float32 of shape [pre_seq_len, hidden], or None.
            deep_prompts: float32 of shape [blocks, pre_seq_len, hidden], or None.
            avoided: segments of a swarm to avoid if there is another route.
            record: records the route through a swarm.

        Returns:
            Outputs of the last block before the final norm, of shape [batch, pre_seq_len + length, hidden].
        """

    def hidden_states_after(
        self,
        shared: SharedBeginning,
        input_ids: torch.Tensor,
        prompts: torch.Tensor | None,
        deep_prompts: torch.Tensor | None,
        record: RouteRecord,
    ) -> torch.Tensor:
        """Does the same for texts that share a beginning, which is computed once; its outputs are NaN.

        Raises:
            NoCacheError: nothing is kept between forwards, or there is no room for it.
        """
        raise NoCacheError("nothing is kept between forwards")

    @abstractmethod
    def session(
        self,
        rows: int,
        max_length: int,
        prompts: torch.Tensor | None = None,
        deep_prompts: torch.Tensor | None = None,
        *,
        rolls_back: bool = True,
    ) -> TextSession:
        """Opens a session for texts that are sent in chunks; nothing is sent yet.

        Args:
            rows: number of texts.
            max_length: most tokens of a text, without prompts.
            prompts: float32 of shape [pre_seq_len, hidden], or None.
            deep_prompts: float32 of shape [blocks, pre_seq_len, hidden], or None.
            rolls_back: whether texts will be continued from before their end, for which more has to be kept of some.
        """

    def cache_tokens(self) -> float:
        """Returns for how many tokens of texts there is room in attention caches; infinity where none are kept."""
        return math.inf

    def room_for_sessions(self, share: float, session_tokens: int) -> SessionRoom:
        """Asks for how many sessions with texts that begin alike there is room (see `room_for_sessions`)."""
        return NO_ROOM

    def open_sessions(self, limit: int) -> None:
        """Lets so many sessions be open at a time."""

    @abstractmethod
    def move(self, device: torch.device) -> None:
        """Moves what runs in this process to a device."""


class ModelOnBackbone(HostedModel, ABC):
    """What is put on a backbone to make its outputs answers.

    Args:
        backbone: where the base model runs.
        hidden_size: width of its outputs.
        prompts: float32 of shape [pre_seq_len, hidden], or None.
        deep_prompts: float32 of shape [blocks, pre_seq_len, hidden], or None.
    """

    def __init__(
        self,
        backbone: Backbone,
        hidden_size: int,
        prompts: torch.Tensor | None = None,
        deep_prompts: torch.Tensor | None = None,
    ) -> None:
        self.backbone, self.prompts, self.deep_prompts = backbone, prompts, deep_prompts
        self._host, self._hidden_size = backbone, hidden_size

    @property
    @abstractmethod
    def columns(self) -> AnswerColumns:
        """Columns of the answer to a text."""

    @abstractmethod
    def answer(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        options: SendOptions = ANY_ROUTE,
        record: RouteRecord | None = None,
    ) -> dict[str, torch.Tensor]:
        """Computes the columns for a batch (see `dist_eval.inference.forward.TextModel`)."""

    def forwards(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Returns the token ids that are sent for a batch, int64 of shape [forwards, length]."""
        return input_ids

    def hidden_states(
        self, input_ids: torch.Tensor, options: SendOptions = ANY_ROUTE, record: RouteRecord | None = None
    ) -> torch.Tensor:
        """Runs the base model after the prompts (see `Backbone.hidden_states`).

        A shared beginning has no outputs; without room to keep it, it is computed like the rest.

        Raises:
            ModelOutputError: the outputs have the wrong shape.
        """
        prompts, record = (self.prompts, self.deep_prompts), record or RouteRecord()
        prompt_tokens = 0 if self.prompts is None else len(self.prompts)
        hidden, parts = None, [input_ids]
        if options.shared is not None:
            try:
                hidden = self.backbone.hidden_states_after(options.shared, input_ids, *prompts, record)
            except NoCacheError:
                record.fell_back = True
                # what shares a beginning may be too large for one forward
                parts = [*torch.split(input_ids, rows_in_cache(prompt_tokens + input_ids.shape[1], CACHE_TOKENS))]
        if hidden is None:
            forward = partial(self.backbone.hidden_states, avoided=options.avoided, record=record)
            hidden = torch.cat([forward(part, *prompts) for part in parts])
        expected = (len(input_ids), prompt_tokens + input_ids.shape[1], self._hidden_size)
        if tuple(hidden.shape) != expected:
            raise ModelOutputError(f"The model answered with shape {list(hidden.shape)} instead of {list(expected)}.")
        return hidden
