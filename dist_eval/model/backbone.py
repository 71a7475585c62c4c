"""A base model without a head: token ids → the last block's outputs, on a swarm or in this process."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dist_eval.data.answers import AnswerColumns
from dist_eval.data.plan import SharedBeginning
from dist_eval.data.prefix_costs import CACHE_TOKENS, rows_in_cache
from dist_eval.errors import ModelOutputError, NoCacheError
from dist_eval.inference.send_options import ANY_ROUTE, SendOptions
from dist_eval.model.text_session import RecomputedTextSession, TextSession
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.embedding import last_layer_outputs, prompted
from dist_eval.petals.base_model.rope import RopeSwitch
from dist_eval.petals.client.outputs import picked
from dist_eval.petals.client.records import RouteSegment, Traffic
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.client.session_room import NO_ROOM, SessionRoom
from dist_eval.petals.model.loading import final_norm_of


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


@dataclass(frozen=True)
class SoftPrompts:
    """The prompts before every text."""

    tokens: torch.Tensor | None = None  # float32 of shape [pre_seq_len, hidden], or None
    deep: torch.Tensor | None = None  # float32 of shape [blocks, pre_seq_len, hidden], or None

    def __len__(self) -> int:
        return 0 if self.tokens is None else len(self.tokens)


NO_PROMPTS = SoftPrompts()


class Backbone(HostedModel, ABC):
    """A base model without a head."""

    config: Any  # its `transformers` config
    final_norm: nn.Module  # after the last block
    word_embeddings: nn.Embedding

    @abstractmethod
    def hidden_states(
        self,
        input_ids: torch.Tensor,
        prompts: SoftPrompts = NO_PROMPTS,
        *,
        avoided: Sequence[RouteSegment] = (),
        record: RouteRecord | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Runs the base model on ids of shape [batch, length]; differentiable in the prompts.

        Returns the outputs of the last block before the final norm, of shape [batch, pre_seq_len + length, hidden];
        with `rows`, int64 positions in batch x (pre_seq_len + length), those of shape [rows, hidden], so that a swarm
        need not send the others. `avoided` are segments of a swarm to avoid if there is another route.
        """

    def hidden_states_after(
        self,
        shared: SharedBeginning,
        input_ids: torch.Tensor,
        prompts: SoftPrompts,
        record: RouteRecord,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Does the same for texts that share a beginning, which is computed once; its outputs are NaN.

        A `NoCacheError` says that nothing is kept between forwards, or that there is no room for it.
        """
        raise NoCacheError("nothing is kept between forwards")

    @abstractmethod
    def session(
        self, rows: int, max_length: int, prompts: SoftPrompts = NO_PROMPTS, *, rolls_back: bool = True
    ) -> TextSession:
        """Opens a session for so many texts of so many tokens, which are sent in chunks; nothing is sent yet.

        With `rolls_back`, texts will be continued from before their end, for which more has to be kept of some.
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


class AnsweringModel(HostedModel, ABC):
    """A model that answers batches (see `dist_eval.inference.forward.TextModel`)."""

    columns: AnswerColumns  # of the answer to a text

    @torch.no_grad()
    def answer(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        options: SendOptions = ANY_ROUTE,
        record: RouteRecord | None = None,
    ) -> dict[str, torch.Tensor]:
        """Computes the columns for a batch.

        Args:
            input_ids: int64 of shape [batch, length], padded on the right with any id.
            lengths: number of real tokens of each text, at least 1, int64 of shape [batch]; or what else the model
                needs of each, of shape [batch, numbers].
            options: constrains the route through a swarm.
            record: records it.

        Returns:
            The columns by name, of shape [batch, ...], on the CPU; not checked for finite values.

        Raises:
            ModelOutputError: the outputs have the wrong shape.
        """
        return self._answer(input_ids, lengths, options, record or RouteRecord())

    @abstractmethod
    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        """See `answer`."""


class ModelOnBackbone(AnsweringModel):
    """What is put on a backbone, whose outputs have a width of `hidden_size`, to make them answers."""

    def __init__(
        self, backbone: Backbone, hidden_size: int, columns: AnswerColumns, prompts: SoftPrompts = NO_PROMPTS
    ) -> None:
        self.backbone, self.columns, self.prompts = backbone, columns, prompts
        self._host, self._hidden_size, self._rope = backbone, hidden_size, RopeSwitch(backbone.config)

    def forwards(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Returns the token ids that are sent for a batch, int64 of shape [forwards, length]."""
        return input_ids

    def hidden_states(
        self,
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        options: SendOptions = ANY_ROUTE,
        record: RouteRecord | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Runs the base model after the prompts (see `Backbone.hidden_states`), and checks the outputs' shape.

        `lengths` has the number of real tokens of each text, int64 of shape [batch]. A shared beginning has no outputs;
        without room to keep it, it is computed like the rest.
        """
        prompts, record = self.prompts, record or RouteRecord()
        hidden, size = None, len(input_ids)
        if options.shared is not None:
            try:
                hidden = self.backbone.hidden_states_after(options.shared, input_ids, prompts, record, rows)
            except NoCacheError:
                record.fell_back = True
                # what shares a beginning may be too large for one forward
                size = rows_in_cache(len(prompts) + input_ids.shape[1], CACHE_TOKENS)
        if hidden is None:
            forward = partial(self.backbone.hidden_states, prompts=prompts, avoided=options.avoided, record=record)
            parts = [*zip(input_ids.split(size), lengths.split(size), strict=True)]
            if len(parts) == 1:
                hidden = self._with_own_frequencies(forward, input_ids, lengths, rows)
            else:
                hidden = picked(torch.cat([self._with_own_frequencies(forward, *part) for part in parts]), rows)
        expected: tuple[int, ...] = (len(input_ids), len(prompts) + input_ids.shape[1], self._hidden_size)
        if rows is not None:
            expected = (len(rows), self._hidden_size)
        if tuple(hidden.shape) != expected:
            raise ModelOutputError(f"The model answered with shape {list(hidden.shape)} instead of {list(expected)}.")
        return hidden

    def _with_own_frequencies(
        self,
        forward: Callable[..., torch.Tensor],
        input_ids: torch.Tensor,
        lengths: torch.Tensor,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Runs texts in one forward, or in several if their rotary embeddings differ; outputs behind a text are 0."""
        before, width = len(self.prompts), input_ids.shape[1]
        kinds = torch.tensor([self._rope.kind(before + length) for length in lengths.tolist()])
        if bool((kinds == self._rope.kind(before + width)).all()):
            return forward(input_ids, rows=rows)
        outputs = []
        for kind in kinds.unique():
            texts = (kinds == kind).nonzero().squeeze(1)
            longest = int(lengths[texts].max())
            found = forward(input_ids[texts, :longest])
            outputs.append((texts, torch.nn.functional.pad(found, (0, 0, 0, width - longest))))
        order = torch.cat([texts for texts, _ in outputs]).argsort()
        return picked(torch.cat([found for _, found in outputs])[order], rows)


class LocalBackbone(Backbone):
    """A base model that runs in this process."""

    def __init__(self, model: Any, architecture: Architecture) -> None:
        self.model, self.config, self._architecture = model, architecture.config, architecture
        self.blocks: nn.ModuleList = model.get_submodule(architecture.layers)
        # applied to the positions that are needed; it acts on each token by itself
        self.final_norm = final_norm_of(model, architecture)
        self.word_embeddings = model.get_input_embeddings()
        self._one_at_a_time = threading.Lock()  # the hooks below belong to the module, not to a call

    def hidden_states(
        self,
        input_ids: torch.Tensor,
        prompts: SoftPrompts = NO_PROMPTS,
        *,
        avoided: Sequence[RouteSegment] = (),
        record: RouteRecord | None = None,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        embeddings = prompted(self.word_embeddings, input_ids, prompts.tokens)
        with self._one_at_a_time, ExitStack() as hooks:
            for block, prompt in zip(self.blocks, prompts.deep if prompts.deep is not None else (), strict=False):
                hooks.callback(block.register_forward_pre_hook(_adding_hook(prompt), with_kwargs=True).remove)
            return picked(last_layer_outputs(self.model, self._architecture, embeddings), rows)

    def session(
        self, rows: int, max_length: int, prompts: SoftPrompts = NO_PROMPTS, *, rolls_back: bool = True
    ) -> TextSession:
        """See `Backbone.session`: the whole texts are computed at each step."""
        return RecomputedTextSession(lambda ids, _: self.hidden_states(ids, prompts), rows)

    def move(self, device: torch.device) -> None:
        self.model.to(device)


def _adding_hook(deep_prompt: torch.Tensor) -> Callable[..., Any]:
    length = deep_prompt.shape[0]

    def hook(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden = args[0] if args else kwargs["hidden_states"]
        prompted = hidden[:, :length] + deep_prompt.to(hidden)
        hidden = torch.cat([prompted, hidden[:, length:]], dim=1)
        return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})

    return hook
