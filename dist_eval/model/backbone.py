"""A base model without a head: token ids → the last block's outputs, on a swarm or in this process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dist_eval.data.answers import AnswerColumns
from dist_eval.data.session_costs import SESSION_TOKENS, rows_in_session
from dist_eval.distributed.timeline import Timeline
from dist_eval.errors import ModelOutputError, NoCacheError
from dist_eval.model.session_pool import Prompts, SessionPool
from dist_eval.model.text_session import LocalTextSession, SwarmTextSession, TextSession
from dist_eval.results.work import Traffic
from dist_eval.swarm.petals_version import can_roll_back
from dist_eval.swarm.router import Routing
from dist_eval.swarm.session_room import NO_ROOM, SessionRoom, room_for_sessions

if TYPE_CHECKING:
    from dist_eval.swarm.requests import SwarmRequests


class HostedModel:
    """A model, hosted by a swarm or by this process; the methods are those of one that runs in this process."""

    @property
    def retries(self) -> int:
        """Requests that had to be repeated so far."""
        return 0

    def traffic(self) -> Traffic | None:
        """Returns the traffic with a swarm so far, for `results.json`; None without a swarm."""
        return None

    def timelines(self) -> dict[str, Timeline]:
        """Returns the requests of each server over time, none without a swarm."""
        return {}

    def notice(self) -> str:
        """Returns a message about what the model waits for; empty if it does not wait."""
        return ""

    def exclude(self, servers: Iterable[str]) -> None:
        """Sends no further requests to servers, given by peer id."""

    def close(self) -> None:
        """Closes connections and processes."""


class Backbone(HostedModel, ABC):
    """A base model without a head.

    Attributes:
        model: the base model of Petals or Hugging Face.
        sessions: where texts that begin alike are sent; None for plain forwards.
    """

    model: Any
    sessions: SessionPool | None = None

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
        """Opens a session for texts that are sent piece by piece; nothing is sent yet.

        Args:
            rows: number of texts.
            max_length: most tokens of a text, without prompts.
            prompts: float32 of shape [pre_seq_len, hidden], or None.
            deep_prompts: float32 of shape [blocks, pre_seq_len, hidden], or None.
        """

    def cache_tokens(self) -> int | None:
        """Returns for how many tokens of texts servers have room in their attention caches; None without a swarm."""
        return None

    def room_for_sessions(self, share: float, session_tokens: int) -> SessionRoom:
        """Asks for how many sessions with texts that begin alike there is room.

        Args:
            share: of the servers' free memory that may be taken, 0 to 1.
            session_tokens: tokens that a session may hold.
        """
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

    def timelines(self) -> dict[str, Timeline]:
        """See `HostedModel.timelines`."""
        return self.backbone.timelines()

    def notice(self) -> str:
        """See `HostedModel.notice`."""
        return self.backbone.notice()

    def exclude(self, servers: Iterable[str]) -> None:
        """See `HostedModel.exclude`."""
        self.backbone.exclude(servers)

    def close(self) -> None:
        """See `HostedModel.close`."""
        self.backbone.close()


class SwarmBackbone(Backbone):
    """A base model whose blocks a swarm hosts; embeddings and final norm are local.

    Args:
        model: a Petals `Distributed*Model`.
        dht: the DHT node it uses.
        requests: sends to the swarm.
    """

    def __init__(self, model: Any, dht: Any, requests: SwarmRequests) -> None:
        self.model, self.dht, self.requests = model, dht, requests

    @property
    def final_norm(self) -> nn.Module:
        """The norm after the last block."""
        return self.model.ln_f

    @property
    def word_embeddings(self) -> nn.Embedding:
        """The embeddings of the vocabulary."""
        return self.model.word_embeddings

    def hidden_states(
        self,
        input_ids: torch.Tensor,
        prompts: torch.Tensor | None,
        deep_prompts: torch.Tensor | None,
        routing: Routing | None = None,
    ) -> torch.Tensor:
        """See `Backbone.hidden_states`."""
        embedded = self.embedded(input_ids, prompts)
        if torch.is_grad_enabled() and (embedded.requires_grad or getattr(deep_prompts, "requires_grad", False)):
            from dist_eval.swarm.gradients import through_swarm

            return through_swarm(self.requests, embedded, deep_prompts)
        return self.requests.forward(embedded, deep_prompts, routing)

    def embedded(self, input_ids: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
        """Returns the first block's inputs, of shape [batch, pre_seq_len + length, hidden]."""
        return self.model.word_embeddings_layernorm(_prompted(self.word_embeddings, input_ids, prompts))

    def session(
        self,
        rows: int,
        max_length: int,
        prompts: torch.Tensor | None = None,
        deep_prompts: torch.Tensor | None = None,
    ) -> TextSession:
        """See `Backbone.session`: servers keep what they have computed."""
        from dist_eval.swarm.inference_session import InferenceSession

        longest = max_length + (0 if prompts is None else len(prompts))
        session = InferenceSession(self.requests, rows=rows, max_length=longest, prompts=deep_prompts)
        return SwarmTextSession(session, self.embedded, prompts)

    def cache_tokens(self) -> int:
        """See `Backbone.cache_tokens`: of the block with the least."""
        room = [0] * self.requests.num_blocks
        for span, free in self.requests.free_cache().items():
            for block in range(span.start, span.end):
                room[block] += free // (span.end - span.start)
        return min(room)

    def room_for_sessions(self, share: float, session_tokens: int) -> SessionRoom:
        """See `Backbone.room_for_sessions`."""
        if not any(can_roll_back(span.announced.version) for span in self.requests.spans()):
            return NO_ROOM
        free = self.requests.free_cache()
        return room_for_sessions(list(free), free, self.requests.num_blocks, share, session_tokens)

    def traffic(self) -> Traffic:
        """See `HostedModel.traffic`."""
        return self.requests.traffic()

    def timelines(self) -> dict[str, Timeline]:
        """See `HostedModel.timelines`."""
        return self.requests.timelines()

    @property
    def retries(self) -> int:
        """See `HostedModel.retries`."""
        return self.requests.retries

    def notice(self) -> str:
        """See `HostedModel.notice`."""
        return self.requests.outage.notice()

    def exclude(self, servers: Iterable[str]) -> None:
        """See `HostedModel.exclude`."""
        self.requests.excluded |= set(servers)

    def move(self, device: torch.device) -> None:
        """See `Backbone.move`: embeddings and final norm."""
        self.model.to(device)

    def close(self) -> None:
        """Closes the sessions, stops the routing thread, then leaves the swarm."""
        if self.sessions is not None:
            self.sessions.close()
        from dist_eval.swarm.client import leave_swarm

        leave_swarm(self.dht, self.model.h.sequence_manager)


class LocalBackbone(Backbone):
    """A base model that runs in this process.

    Args:
        model: a Hugging Face base model (`LlamaModel`, `BloomModel`, `FalconModel`).
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.blocks: nn.ModuleList = model.layers if hasattr(model, "layers") else model.h
        norm_name = "norm" if hasattr(model, "norm") else "ln_f"
        self._norm = getattr(model, norm_name)
        self._one_at_a_time = threading.Lock()  # the hooks below belong to the module, not to a call
        # the final norm is applied to the pooled token only; it acts on each token by itself
        setattr(model, norm_name, nn.Identity())

    @property
    def final_norm(self) -> nn.Module:
        """The norm after the last block."""
        return self._norm

    @property
    def word_embeddings(self) -> nn.Embedding:
        """The embeddings of the vocabulary."""
        return self.model.get_input_embeddings()

    def hidden_states(
        self,
        input_ids: torch.Tensor,
        prompts: torch.Tensor | None,
        deep_prompts: torch.Tensor | None,
        routing: Routing | None = None,
    ) -> torch.Tensor:
        """See `Backbone.hidden_states`."""
        embeddings = _prompted(self.word_embeddings, input_ids, prompts)
        with self._one_at_a_time, ExitStack() as hooks:
            for block, prompt in zip(self.blocks, deep_prompts if deep_prompts is not None else (), strict=False):
                hooks.callback(block.register_forward_pre_hook(_adding_hook(prompt), with_kwargs=True).remove)
            return self.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state

    def session(
        self,
        rows: int,
        max_length: int,
        prompts: torch.Tensor | None = None,
        deep_prompts: torch.Tensor | None = None,
    ) -> TextSession:
        """See `Backbone.session`: the whole texts are computed at each step."""
        return LocalTextSession(lambda ids: self.hidden_states(ids, prompts, deep_prompts), rows)

    def move(self, device: torch.device) -> None:
        """See `Backbone.move`: the whole model."""
        self.model.to(device)
        self._norm.to(device)


def _prompted(words: nn.Embedding, input_ids: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
    embeddings = words(input_ids.to(words.weight.device))
    if prompts is None:
        return embeddings
    return torch.cat([prompts.to(embeddings).expand(len(embeddings), -1, -1), embeddings], dim=1)


def _adding_hook(deep_prompt: torch.Tensor) -> Callable[..., Any]:
    length = deep_prompt.shape[0]

    def hook(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = args[0]
        prompted = hidden[:, :length] + deep_prompt.to(hidden)
        return (torch.cat([prompted, hidden[:, length:]], dim=1), *args[1:]), kwargs

    return hook
