"""A transformers cache for texts that are computed on a swarm.

It keeps the texts, as token ids or embedded, and the sessions in which servers keep their caches. If servers have
sessions and room, only new tokens are sent; otherwise the texts are computed from their beginning.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationMixin
from transformers.cache_utils import Cache

from dist_eval.errors import DataError, NoCacheError
from dist_eval.petals.client.inputs import Inputs
from dist_eval.petals.model.blocks import at_once
from dist_eval.petals.model.rows import Rows

if TYPE_CHECKING:
    from dist_eval.petals.client.inference_session import InferenceSession
    from dist_eval.petals.model.base import SwarmBase

_LEAST_ROOM = 64  # tokens that a session reserves after a text if their number is unknown

Text = list[torch.Tensor]
"""A row's tokens in parts, one for each call: ids of shape [tokens], or embedded of shape [tokens, hidden]."""


@dataclass
class _Session:
    """A session with the texts of some rows of equal length."""

    session: InferenceSession
    room: int  # most tokens of a text
    texts: list[Text] = field(default_factory=list)  # the texts that servers keep


class SwarmCache(Cache):
    """The texts of a batch so far.

    Args:
        base: the base model.
        max_length: most columns of the batch; if not given, sessions are reopened as it grows.
        at_once: open sessions with the first tokens; by default with the first continuation.
        reorders: whether texts may change before their end, as with beams.
    """

    is_compileable = False
    is_croppable = True

    def __init__(
        self, base: SwarmBase, *, max_length: int | None = None, at_once: bool = False, reorders: bool = False
    ) -> None:
        super().__init__(layers=[])
        self._base, self._max_length, self._at_once, self._reorders = base, max_length, at_once, reorders
        self._columns: torch.Tensor | None = None
        self._texts: list[Text] = []
        self._sessions: dict[tuple[int, ...], _Session] = {}
        self._has_room = True
        weakref.finalize(self, _close_all, self._sessions, os.getpid())

    def belongs_to(self, base: SwarmBase) -> bool:
        """Whether the texts are those of a model."""
        return self._base is base

    def __deepcopy__(self, memo: Any) -> SwarmCache:
        """Copies the texts; the copy opens sessions of its own."""
        copied = SwarmCache(self._base, max_length=self._max_length, at_once=self._at_once, reorders=self._reorders)
        copied._columns, copied._texts = self._columns, [[*text] for text in self._texts]
        copied._has_room = self._has_room
        return copied

    def columns(self, texts: torch.Tensor) -> torch.Tensor:
        """Returns which columns so far are tokens, not padding; bool of shape [rows, columns]."""
        if self._columns is None:
            return torch.zeros(len(texts), 0, dtype=torch.bool, device=texts.device)
        if len(self._columns) != len(texts):
            raise DataError(f"{len(texts)} texts cannot continue a batch of {len(self._columns)}.")
        return self._columns

    def continued(self, tokens: torch.Tensor, rows: Rows, wanted: torch.Tensor) -> torch.Tensor:
        """Computes the next tokens of the texts.

        `tokens` have the form of `texts` in `SwarmBase.whole_texts`, `rows` are their places in the batch, and `wanted`
        is bool of shape [rows, length]. Returns the outputs of the last layer at the wanted positions, row by row, of
        shape [positions, hidden].
        """
        # copied, because callers may reuse the memory of their batches
        new = [text[:count].clone() for text, count in zip(tokens, rows.counts.tolist(), strict=True)]
        before = self._texts or [[] for _ in new]
        texts = [[*old, part] if len(part) else old for old, part in zip(before, new, strict=True)]
        is_first = self._columns is None
        if self._can_use_sessions(tokens) and (self._at_once or not is_first):
            outputs = self._in_sessions(texts, new, wanted)
        elif is_first:
            outputs = self._base.whole_texts(tokens, rows.counts.tolist(), wanted)
        else:
            outputs = self._recomputed(texts, new, wanted)
        self._texts, self._columns = texts, torch.cat([self.columns(tokens), rows.real], dim=1)
        return outputs

    def _can_use_sessions(self, tokens: torch.Tensor) -> bool:
        texts = [tokens, *itertools.chain(*self._texts)]
        inputs = [*texts, self._base.soft_prompts(), self._base.deep_prompts(), *self._base.input_parameters()]
        learns = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs)
        return self._has_room and not learns and self._base.swarm_blocks.has_sessions

    def _recomputed(self, texts: Sequence[Text], new: Sequence[torch.Tensor], wanted: torch.Tensor) -> torch.Tensor:
        known = [row for row, text in enumerate(texts) if text]
        whole = self._joined([texts[row] for row in known])
        batch = pad_sequence(whole, batch_first=True)
        wanted_of_whole = torch.zeros(batch.shape[:2], dtype=torch.bool)
        for place, row in enumerate(known):
            end, count = len(whole[place]), len(new[row])
            wanted_of_whole[place, end - count : end] = wanted[row, :count]
        return self._base.whole_texts(batch, [*map(len, whole)], wanted_of_whole)

    def _joined(self, texts: Sequence[Text]) -> list[torch.Tensor]:
        """Joins the parts of each text; ids are embedded unless all parts are ids."""
        if any(part.ndim > 1 for text in texts for part in text):
            embed = self._base.get_input_embeddings()
            texts = [[embed(part) if part.ndim == 1 else part for part in text] for text in texts]
        return [torch.cat(text) for text in texts]

    def _in_sessions(self, texts: list[Text], new: list[torch.Tensor], wanted: torch.Tensor) -> torch.Tensor:
        groups: dict[tuple[int, int], list[int]] = {}
        for row, (text, part) in enumerate(zip(texts, new, strict=True)):
            if len(part):
                groups.setdefault((sum(map(len, text)), len(part)), []).append(row)
        parts = [(tuple(rows), length, count) for (length, count), rows in groups.items()]
        try:
            self._require_room([(rows, texts[rows[0]], length) for rows, length, _ in parts])
            self._close_others({rows for rows, *_ in parts})
            answers = at_once([functools.partial(self._step, texts, wanted, *part) for part in parts])
        except NoCacheError:  # a plain forward may still work
            self._has_room = False
            self.close()
            return self._recomputed(texts, new, wanted)
        table = self._base.get_input_embeddings().weight
        outputs = table.new_zeros(*wanted.shape, answers[0].shape[1])
        for (rows, _, count), found in zip(parts, answers, strict=True):
            places = torch.zeros_like(wanted)
            places[list(rows), :count] = wanted[list(rows), :count]
            outputs[places.to(outputs.device)] = found.to(outputs)
        return outputs[wanted.to(outputs.device)]

    @torch.no_grad()
    def _step(
        self, texts: list[Text], wanted: torch.Tensor, rows: tuple[int, ...], length: int, count: int
    ) -> torch.Tensor:
        """Sends the last tokens of some texts of equal length, and any others that their session lacks.

        Returns the wanted outputs of the last tokens, row by row, of shape [positions, hidden].
        """
        own = [texts[row] for row in rows]
        known = self._sessions.get(rows)
        if known is None or length > known.room:
            self._forget(rows)
            known = self._sessions[rows] = self._opened(own, length)
        alike = map(_alike, own, known.texts or [[] for _ in own])
        start = min(length - count, *alike)
        tokens = torch.stack([text[start:] for text in self._joined(own)])
        place = start + self._base.prompt_length if start else 0
        prompts = None if start else self._base.soft_prompts()
        known.texts = []  # unknown if the step fails
        inputs = Inputs.of(self._base.inputs(tokens, prompts))
        asked = functional.pad(wanted[list(rows), :count], (inputs.length - count, 0)).flatten().nonzero().squeeze(1)
        outputs = known.session.step(inputs, place, rows=asked.cpu())
        known.texts = own
        return outputs

    def _require_room(self, parts: Sequence[tuple[tuple[int, ...], Text, int]]) -> None:
        """Raises an error if servers lack room for the first sessions of a batch, which would wait for each other."""
        if self._sessions or len(parts) < 2:
            return
        blocks, prompts = self._base.swarm_blocks, self._base.prompt_length
        tokens = sum(len(rows) * (self._room(text, length) + prompts) for rows, text, length in parts)
        if tokens > (free := blocks.cache_tokens(0)):
            raise NoCacheError(
                f"the texts may need {tokens} tokens of servers' attention caches, which have {free:.0f}"
            )

    def _room(self, text: Text, length: int) -> int:
        """Returns the most tokens of a text of `length` for which to reserve memory."""
        padding = self.get_seq_length() - sum(map(len, text[:-1]))
        room = max(2 * length, length + _LEAST_ROOM) if self._max_length is None else self._max_length - padding
        return max(room, length)

    def _opened(self, texts: list[Text], length: int) -> _Session:
        room = self._room(texts[0], length)
        if self._base.changes_frequencies(room):
            raise NoCacheError("the rotary embeddings change with the length, so servers cannot continue these texts")
        session = self._base.swarm_blocks.session(
            lambda inputs, _: inputs,
            len(texts),
            room + self._base.prompt_length,
            deep_prompts=self._base.deep_prompts(),
            rolls_back=self._reorders,
        )
        return _Session(session, room)

    def _close_others(self, wanted: set[tuple[int, ...]]) -> None:
        """Closes sessions whose rows are in others now."""
        moved = {row for rows in wanted for row in rows}
        for rows in [rows for rows in self._sessions if rows not in wanted and moved & {*rows}]:
            self._forget(rows)

    def _forget(self, rows: tuple[int, ...]) -> None:
        if known := self._sessions.pop(rows, None):
            known.session.close()

    def close(self) -> None:
        """Frees the servers' memory; the texts can still be continued."""
        for rows in list(self._sessions):
            self._forget(rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self._columns is None else self._columns.shape[1]

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    @property
    def is_initialized(self) -> bool:
        return self._columns is not None

    @property
    def batch_size(self) -> int:
        return len(self._texts)

    @property
    def is_linear(self) -> list[bool]:
        """Whether each layer is linear; `generate` gets the answers of full attention."""
        return [False]

    is_sliding = is_dummy = is_linear

    def replace(self, ids: torch.Tensor) -> None:
        """Replaces texts that differ from given token ids, as after a search with beams, which drops some.

        `ids` are int64 of shape [rows, columns or more], in the order of the batch's rows.
        """
        if self._columns is None or any(part.ndim > 1 for part in itertools.chain(*self._texts)):
            return
        if len(ids) != len(self._texts):
            self.batch_select_indices(torch.arange(len(ids)) * len(self._texts) // len(ids))
        for row, text in enumerate(self._texts):
            own = ids[row, : self._columns.shape[1]][self._columns[row].to(ids.device)]
            held = torch.cat(text) if text else own[:0]
            if not torch.equal(held.to(own.device), own):
                self._texts[row] = [own.clone()]

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self._columns is not None:
            self._columns = self._columns[indices.to(self._columns.device)]
            self._texts = [[*self._texts[row]] for row in torch.arange(len(self._texts))[indices.cpu()].tolist()]

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(len(self._texts)).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Drops the last columns: a negative number is how many to drop, a positive one how many to keep."""
        columns = self.get_seq_length()
        kept = tokens_to_remove if tokens_to_remove > 0 else columns + tokens_to_remove
        if self._columns is None or kept >= columns:
            return
        self._columns = self._columns[:, :kept]
        sizes = self._columns.sum(dim=1).tolist()
        self._texts = [_beginning(text, size) for text, size in zip(self._texts, sizes, strict=True)]

    def reset(self) -> None:
        self.close()
        self._columns, self._texts = None, []

    def activate_past_recording(self) -> None:
        """Enables `crop`, which always works here."""


@functools.cache
def cache_name() -> str:
    """Returns the argument name of a cache in this version of transformers."""
    known = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return "cache" if "cache" in known else "past_key_values"


def _alike(one: Text, other: Text) -> int:
    """Returns the number of tokens in the equal parts that two texts begin with."""
    same = itertools.takewhile(lambda pair: _equal(*pair), zip(one, other, strict=False))
    return sum(len(part) for part, _ in same)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def _beginning(text: Text, size: int) -> Text:
    found: Text = []
    for part in text:
        if size > 0:
            found.append(part[:size])
        size -= len(part)
    return found


def close_unused(session: InferenceSession, pid: int) -> None:
    """Closes a session whose owner, in process `pid`, was garbage-collected, in any thread; must not wait."""
    if os.getpid() == pid:
        session.close(wait=False)


def _close_all(sessions: dict[tuple[int, ...], _Session], pid: int) -> None:
    for known in sessions.values():
        close_unused(known.session, pid)
