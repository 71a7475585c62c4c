"""The sessions of a rank, and what each of them holds: texts that begin alike continue the same one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dist_eval.data.plan import SharedBeginning
from dist_eval.errors import NoCacheError
from dist_eval.model.backbone import SoftPrompts
from dist_eval.model.text_session import TextSession
from dist_eval.petals.client.routes import RouteRecord

# Seconds to wait for room, because a plain forward would have other bits; and as long a time without attempts then
_LONGEST_WAIT, _BETWEEN_TRIES = 60.0, 1.0

_NO_ROWS = torch.empty(0, dtype=torch.int64)
_THREADS = 4  # Threads that share a session, for each server that its texts pass


class _Beginnings(NamedTuple):
    """What the rows of a session hold."""

    ids: torch.Tensor  # their token ids, int64 of shape [rows, tokens]
    common: int  # tokens that are a step of their own, because other beginnings have them, too
    length: int  # most tokens of a text, without prompts

    def equal(self, other: _Beginnings) -> bool:
        """Whether rows hold the same tokens, which were sent in the same steps."""
        return self[1:] == other[1:] and torch.equal(self.ids, other.ids)

    def start_like(self, other: _Beginnings) -> bool:
        """Whether rows have in common what those of other beginnings have."""
        size = self.common
        return self[1:] == other[1:] and torch.equal(self.ids[:, :size], other.ids[:, :size])


@dataclass(eq=False)
class _Slot:
    """A session that is open, or is being opened."""

    session: TextSession | None = None  # the session
    held: _Beginnings | None = None  # what its rows hold; None while that changes
    users: int = 1  # threads that use it: several if their texts begin with what it holds
    failed: bool = False  # whether it is to be closed once nobody uses it

    @property
    def servers(self) -> int:
        """How many servers its texts pass."""
        return 0 if self.session is None else self.session.servers

    def can_serve(self, fits: Callable[[_Beginnings], bool]) -> bool:
        """Whether it can be used, and what it holds fits."""
        return self.held is not None and not self.failed and fits(self.held)


class SessionPool:
    """Sends texts in sessions whose servers hold their common beginning. Thread-safe.

    The shape of each step follows from the batch alone: texts are padded on the right, and batches with further rows.
    So the bits of an answer depend neither on what the session was used for before, nor on the rank.
    """

    def __init__(self, open_session: Callable[[int, int, SoftPrompts], TextSession], limit: int) -> None:
        self._open_session, self._limit = open_session, limit
        self._changed = threading.Condition()
        self._open: list[_Slot] = []
        self._waiting: dict[int, _Beginnings] = {}
        self._paused_until = float("-inf")
        self._full_since: float | None = None

    def hidden_states(
        self,
        shared: SharedBeginning,
        input_ids: torch.Tensor,
        prompts: SoftPrompts,
        record: RouteRecord,
        needed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Runs the base model on texts that begin alike (see `Backbone.hidden_states_after`).

        If all begin with the same tokens, each row of the session holds these, and is continued by one text after the
        other. Otherwise, each row holds one of the beginnings, and is continued by the texts that have it.
        A `NoCacheError` says that no server has room, for a minute by now, or that this rank may not open a session.
        """
        known = len(record.route)
        while True:
            try:
                outputs = self._in_session(shared, input_ids, prompts, record, needed)
                record.route[known:] = dict.fromkeys(record.route[known:])  # each step has the same
                return outputs
            except NoCacheError as error:
                del record.route[known:]
                if not error.transient or self._has_waited():
                    raise
                time.sleep(_BETWEEN_TRIES)

    def _has_waited(self) -> bool:
        """Whether no server has had room for a minute, not even for one session."""
        with self._changed:
            since = self._full_since
            return since is not None and not self._open and time.monotonic() - since > _LONGEST_WAIT

    def _in_session(
        self,
        shared: SharedBeginning,
        input_ids: torch.Tensor,
        prompts: SoftPrompts,
        record: RouteRecord,
        needed: torch.Tensor | None,
    ) -> torch.Tensor:
        rows, held, places = shared.rows, shared.tokens - len(prompts), np.arange(len(input_ids))
        if shared.common == shared.tokens:
            beginnings = input_ids[:1, :held].expand(rows, -1)
        else:
            beginnings, row_of = _distinct(input_ids[:, :held])
            beginnings = torch.cat([beginnings, beginnings[:1].expand(rows - len(beginnings), -1)])
            places = _turns(row_of) * rows + row_of
        wanted = _Beginnings(beginnings, shared.common - len(prompts), shared.length - len(prompts))
        # a row without a text of its own gets the first text, whose outputs are not used
        text_at = np.zeros((int(places.max()) // rows + 1) * rows, dtype=np.int64)
        text_at[places] = np.arange(len(input_ids))
        ways = [input_ids[texts, held:] for texts in np.split(text_at, len(text_at) // rows)]
        with self._session(wanted, prompts) as session:
            width, own = len(prompts) + input_ids.shape[1], input_ids.shape[1] - held
            rows_of_all = torch.arange(len(input_ids) * width) if needed is None else needed
            known = (rows_of_all % width >= shared.tokens).nonzero().flatten()
            # where they are in the outputs of all ways
            flat = torch.from_numpy(places)[rows_of_all[known] // width] * own
            flat += rows_of_all[known] % width - shared.tokens
            order = flat.argsort(stable=True)
            counts = torch.bincount(flat // (rows * own), minlength=len(ways)).tolist()
            rows_of_ways = (flat[order] % (rows * own)).split(counts)
            found = torch.cat(list(session.continuations(ways, record, rows_of_ways)))
        outputs = found.new_full((len(rows_of_all), found.shape[1]), torch.nan)
        outputs[known[order]] = found
        return outputs if needed is not None else outputs.unflatten(0, (len(input_ids), width))

    def close(self) -> None:
        """Gives the servers' memory back; sessions that a thread still uses end with the process."""
        with self._changed:
            self._limit = 0
            idle = [slot for slot in self._open if not slot.users]
            self._open = [slot for slot in self._open if slot.users]
            self._changed.notify_all()
        for slot in idle:
            if slot.session is not None:
                slot.session.close()

    @contextmanager
    def _session(self, wanted: _Beginnings, prompts: SoftPrompts) -> Iterator[TextSession]:
        """Lends a session that holds the beginnings, perhaps to several threads at a time."""
        slot, held = self._take(wanted)
        try:
            if slot.held is None:
                self._prepare(slot, held, wanted, prompts)
            assert slot.session is not None
            yield slot.session
        except BaseException as error:
            self._give_back(slot, error)
            raise
        self._give_back(slot)

    def _prepare(self, slot: _Slot, held: _Beginnings | None, wanted: _Beginnings, prompts: SoftPrompts) -> None:
        """Has the servers of a session compute the beginnings, as far as they do not hold them."""
        rows, tokens = wanted.ids.shape
        if held is None or not held.start_like(wanted):
            session, slot.session = slot.session, None
            if session is not None:
                session.close()
            slot.session = self._open_session(rows, wanted.length, prompts)
            if wanted.common + len(prompts):
                slot.session.step(wanted.ids[:, : wanted.common], rows=_NO_ROWS)
        if wanted.common < tokens:
            assert slot.session is not None
            slot.session.step(wanted.ids[:, wanted.common :], start=wanted.common, rows=_NO_ROWS)
        with self._changed:
            slot.held = wanted
            self._changed.notify_all()

    def _give_back(self, slot: _Slot, error: BaseException | None = None) -> None:
        with self._changed:
            slot.users -= 1
            if error is None:
                self._full_since = None
            else:
                slot.failed = True
            unused = not slot.users
            self._changed.notify_all()
        if not slot.failed or not unused:
            return
        try:
            if slot.session is not None:
                slot.session.close()
        finally:
            with self._changed:
                self._open.remove(slot)
                if isinstance(error, NoCacheError) and error.transient:
                    now = time.monotonic()
                    self._full_since = self._full_since or now
                    has_waited = now - self._full_since > _LONGEST_WAIT
                    self._paused_until = now + (_LONGEST_WAIT if has_waited else _BETWEEN_TRIES)
                self._changed.notify_all()

    def _take(self, wanted: _Beginnings) -> tuple[_Slot, _Beginnings | None]:
        """Waits for a session: one with these beginnings, or what they have in common, or any, or leave to open one."""
        with self._changed:
            self._waiting[id(wanted)] = wanted
            try:
                while self._limit > 0:
                    slot = self._fitting(wanted)
                    if slot is not None:
                        slot.users += 1
                        held = slot.held
                        if held is not None and not held.equal(wanted):
                            slot.held = None
                        return slot, held
                    if len(self._open) < self._limit and time.monotonic() >= self._paused_until:
                        self._open.append(_Slot())
                        return self._open[-1], None
                    if not self._open:
                        break
                    self._changed.wait()
            finally:
                del self._waiting[id(wanted)]
                self._changed.notify_all()  # what was left to this thread is free
            error = NoCacheError("there is no room for a session")
            error.transient = self._limit > 0
            raise error

    def _fitting(self, wanted: _Beginnings) -> _Slot | None:
        """Finds the session that fits best; one that does not only if no other can be opened, or is waited for.

        So many threads share a session that each server of it has steps to work on while answers are on their way.
        """
        equal = [slot for slot in self._open if slot.can_serve(wanted.equal) and slot.users < _THREADS * slot.servers]
        if equal:
            return min(equal, key=lambda slot: slot.users)
        idle = [slot for slot in self._open if not slot.users]
        for slot in idle:
            if slot.can_serve(wanted.start_like):
                return slot
        if len(self._open) < self._limit and self._full_since is None:
            return None
        for slot in idle:
            if slot.can_serve(lambda held: not any(other.start_like(held) for other in self._waiting.values())):
                return slot
        return None


def _distinct(beginnings: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """Returns the distinct rows of a tensor in order of appearance, and for each row which of them it is."""
    numbers: dict[bytes, int] = {}
    which = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in beginnings.numpy()])
    return beginnings[np.unique(which, return_index=True)[1]], which


def _turns(row_of: np.ndarray) -> np.ndarray:
    """Returns for each text how many before it have the same row, int64 of shape [texts]."""
    order = np.argsort(row_of, kind="stable")
    starts = np.searchsorted(row_of[order], row_of)
    turns = np.empty_like(order)
    turns[order] = np.arange(len(order))
    return turns - starts
