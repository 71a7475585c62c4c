"""A base model without a head: token ids → the last block's outputs, on a swarm or in this process."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from dist_eval.data.answers import AnswerColumns
from dist_eval.data.session_costs import SESSION_TOKENS, rows_in_session
from dist_eval.errors import ModelOutputError, NoCacheError
from dist_eval.model.session_pool import Prompts, SessionPool
from dist_eval.model.text_session import TextSession
from dist_eval.results.work import Traffic
from dist_eval.swarm.router import Routing
from dist_eval.swarm.session_room import NO_ROOM, SessionRoom


class HostedModel:
    """A model, hosted by a swarm or by this process; the methods are those of one that runs in this process."""

    @property
    def retries(self) -> int:
        """Requests that had to be repeated so far."""
        return 0

    def traffic(self) -> Traffic | None:
        """Returns the traffic with a swarm so far, for `results.json`; None without a swarm."""
        return None

    def notice(self) -> str:
        """Returns a message about what the model waits for; empty if it does not wait."""
        return ""

    def exclude(self, servers: Iterable[str]) -> None:
        """Sends no further requests to servers, given by peer id."""

    def close(self) -> None:
        """Closes connections and processes."""


class Backbone(HostedModel, ABC):
    """A base model without a head."""

    config: Any  # its `transformers` config
    sessions: SessionPool | None = None  # where texts that begin alike are sent; None for plain forwards

    @property
    @abstractmethod
    def final_norm(self) -> nn.Module:
        """The norm after the last block."""

    @property
    @abstractmethod
    def word_embeddings(self) -> nn.Embedding:
        """The embeddings of the vocabulary."""

    @abstractmethod
    def hidden_states(
        self,
        input_ids: torch.Tensor,
        prompts: torch.Tensor | None,
        deep_prompts: torch.Tensor | None,
        routing: Routing | None = None,
    ) -> torch.Tensor:
        """Runs the base model; differentiable in the prompts.

        Args:
            input_ids: int64 of shape [batch, length].
            prompts: float32 of shape [pre_seq_len, hidden], or None.
            deep_prompts: float32 of shape [blocks, pre_seq_len, hidden], or None.
            routing: records the route through a swarm.

        Returns:
            Outputs of the last block before the final norm, of shape [batch, pre_seq_len + length, hidden].
        """

    @abstractmethod
    def session(
        self,
        rows: int,
        max_length: int,
        prompts: torch.Tensor | None = None,
        deep_prompts: torch.Tensor | None = None,
    ) -> TextSession:
        """Opens a session for texts that are sent in chunks; nothing is sent yet.

        Args:
            rows: number of texts.
            max_length: most tokens of a text, without prompts.
            prompts: float32 of shape [pre_seq_len, hidden], or None.
            deep_prompts: float32 of shape [blocks, pre_seq_len, hidden], or None.
        """

    def cache_tokens(self) -> float:
        """Returns for how many tokens of texts there is room in attention caches; infinity where none are kept."""
        return math.inf

    def room_for_sessions(self, share: float, session_tokens: int) -> SessionRoom:
        """Asks for how many sessions with texts that begin alike there is room."""
        return NO_ROOM

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
        self._hidden_size = hidden_size

    @property
    @abstractmethod
    def columns(self) -> AnswerColumns:
        """Columns of the answer to a text."""

    @abstractmethod
    def answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, routing: Routing | None = None
    ) -> dict[str, torch.Tensor]:
        """Computes the columns for a batch (see `dist_eval.inference.forward.TextModel`)."""

    def forwards(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Returns the token ids that are sent for a batch, int64 of shape [forwards, length]."""
        return input_ids

    def hidden_states(self, input_ids: torch.Tensor, routing: Routing | None = None) -> torch.Tensor:
        """Runs the base model after the prompts (see `Backbone.hidden_states`).

        What `routing.session` holds has no outputs; without room for a session, it is computed like the rest.

        Raises:
            ModelOutputError: the outputs have the wrong shape.
        """
        hidden = None
        if routing is not None and routing.session:
            try:
                if self.backbone.sessions is None:
                    raise NoCacheError("there are no sessions")
                prompts = Prompts(self.prompts, self.deep_prompts)
                hidden = self.backbone.sessions.hidden_states(input_ids, prompts, routing)
            except NoCacheError:
                routing.fell_back = True
        prompt_tokens = 0 if self.prompts is None else len(self.prompts)
        if hidden is None:
            parts: Sequence[torch.Tensor] = [input_ids]
            if routing is not None and routing.session:  # a batch for a session may be too large for one forward
                parts = torch.split(input_ids, rows_in_session(prompt_tokens + input_ids.shape[1], SESSION_TOKENS))
            hidden = torch.cat(
                [self.backbone.hidden_states(part, self.prompts, self.deep_prompts, routing) for part in parts]
            )
        expected = (len(input_ids), prompt_tokens + input_ids.shape[1], self._hidden_size)
        if tuple(hidden.shape) != expected:
            raise ModelOutputError(f"The model answered with shape {list(hidden.shape)} instead of {list(expected)}.")
        return hidden

    @property
    def retries(self) -> int:
        """See `HostedModel.retries`."""
        return self.backbone.retries

    def traffic(self) -> Traffic | None:
        """See `HostedModel.traffic`."""
        return self.backbone.traffic()

    def notice(self) -> str:
        """See `HostedModel.notice`."""
        return self.backbone.notice()

    def exclude(self, servers: Iterable[str]) -> None:
        """See `HostedModel.exclude`."""
        self.backbone.exclude(servers)

    def close(self) -> None:
        """See `HostedModel.close`."""
        self.backbone.close()
