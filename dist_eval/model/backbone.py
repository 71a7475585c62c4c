"""A base model without a head, on a swarm or in this process: token ids → the last block's outputs."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dist_eval.data.answers import AnswerColumns
from dist_eval.data.plan import SharedPrefix
from dist_eval.data.prefix_costs import CACHE_TOKENS, rows_in_cache
from dist_eval.errors import ModelOutputError, NoCacheError
from dist_eval.inference.models import ANY_ROUTE, AnsweringModel, HostedModel, SendOptions
from dist_eval.model.text_session import RecomputedTextSession, TextSession
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.base_model.embedding import last_layer_outputs, prompted
from dist_eval.petals.base_model.rope import RopeSwitch
from dist_eval.petals.client.outputs import picked
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.client.session_room import NO_ROOM, SessionRoom
from dist_eval.petals.model.loading import final_norm_of, load_whole_base
from dist_eval.revisions import pinned


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

        Returns the outputs of the last block before the final norm, of shape [batch, pre_seq_len + length, hidden].
        With `rows`, int64 positions in batch x (pre_seq_len + length), returns only these, of shape [rows, hidden], so
        that a swarm does not send the others. `avoided` are segments of a swarm to avoid if there is another route.
        """

    def hidden_states_after(
        self,
        shared: SharedPrefix,
        input_ids: torch.Tensor,
        prompts: SoftPrompts,
        record: RouteRecord,
        rows: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Does the same for texts with a shared prefix, which is computed once; its outputs are NaN.

        Raises `NoCacheError` if nothing is cached between forwards, or if there is no cache space.
        """
        raise NoCacheError("nothing is cached between forwards")

    @abstractmethod
    def session(
        self, rows: int, max_length: int, prompts: SoftPrompts = NO_PROMPTS, *, rolls_back: bool = True
    ) -> TextSession:
        """Opens a session for `rows` texts of up to `max_length` tokens, to send in chunks; sends nothing yet.

        With `rolls_back`, texts may be continued from before their end, for which some models need more cache.
        """

    def cache_tokens(self) -> float:
        """Returns how many tokens the attention caches have space for; infinity without caches."""
        return math.inf

    def room_for_sessions(self, share: float, session_tokens: int) -> SessionRoom:
        """Asks how many sessions for shared prefixes there is space for (see `SwarmBlocks.room_for_sessions`)."""
        return NO_ROOM

    def open_sessions(self, limit: int) -> None:
        """Sets the maximum number of open sessions."""

    @abstractmethod
    def move(self, device: torch.device) -> None:
        """Moves the part in this process to a device."""


class ModelOnBackbone(AnsweringModel):
    """Turns the outputs of a backbone, of width `hidden_size`, into answers."""

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

        `lengths` is the number of real tokens of each text, int64 of shape [batch]. A shared prefix has no outputs;
        without cache space for it, it is computed like the rest.
        """
        prompts, record = self.prompts, record or RouteRecord()
        hidden, size = None, len(input_ids)
        if options.shared is not None:
            try:
                hidden = self.backbone.hidden_states_after(options.shared, input_ids, prompts, record, rows)
            except NoCacheError:
                record.fell_back = True
                # texts with a shared prefix may be too many for one forward
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
        """Runs texts in one forward, or in several if their rotary embeddings differ; outputs after a text are 0."""
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
        # applied only to the positions that are needed, because it acts on each token separately
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
        """See `Backbone.session`: each step computes the whole texts."""
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


def load_local_backbone(model: str, device: torch.device | None = None) -> LocalBackbone:
    """Loads a base model that runs in this process."""
    architecture = Architecture(read_base_config(model, pinned("model", model)), model)
    base = load_whole_base(architecture, model, pinned("model", model))
    backbone = LocalBackbone(base, architecture)
    backbone.move(device or torch.device("cpu"))
    return backbone
