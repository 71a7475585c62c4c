"""The sessions of a rank and the prefixes cached in each: texts with a common prefix continue the same session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dist_eval.data.plan import SharedPrefix
from dist_eval.errors import NoCacheError
from dist_eval.model.backbone import SoftPrompts
from dist_eval.model.text_session import TextSession
from dist_eval.petals.client.routes import RouteRecord

# seconds to wait for cache space, because a plain forward would have other bits, and afterwards to make no attempt; and
# seconds between attempts
_LONGEST_WAIT, _BETWEEN_TRIES = 60.0, 1.0

_NO_ROWS = torch.empty(0, dtype=torch.int64)
_THREADS = 4  # threads that share a session, per server that its texts pass


class _Prefixes(NamedTuple):
    """The prefixes cached in the rows of a session."""

    ids: torch.Tensor  # their token ids, int64 of shape [rows, tokens]
    common: int  # tokens sent in a separate step, because other prefixes also begin with them
    length: int  # maximum tokens of a text, without prompts

    def equal(self, other: _Prefixes) -> bool:
        """Whether rows hold the same tokens, sent in the same steps."""
        return self[1:] == other[1:] and torch.equal(self.ids, other.ids)

    def start_like(self, other: _Prefixes) -> bool:
        """Whether the common tokens of both are equal."""
        size = self.common
        return self[1:] == other[1:] and torch.equal(self.ids[:, :size], other.ids[:, :size])


@dataclass(eq=False)
class _Slot:
    """A session that is open or being opened."""

    session: TextSession | None = None  # the session
    held: _Prefixes | None = None  # the cached prefixes; None while they change
    users: int = 1  # threads that use it: several if their texts have the cached prefix
    failed: bool = False  # whether to close it once no thread uses it

    @property
    def servers(self) -> int:
        """How many servers its texts pass."""
        return 0 if self.session is None else self.session.servers

    def can_serve(self, fits: Callable[[_Prefixes], bool]) -> bool:
        """Whether it can be used and its prefixes fit."""
        return self.held is not None and not self.failed and fits(self.held)


class SessionPool:
    """Sends texts in sessions whose servers have cached their common prefix. Thread-safe.

    The shape of each step follows from the batch alone: texts are padded on the right, and batches with further rows.
    So the bits of an answer depend neither on the earlier use of the session nor on the rank.
    """

    def __init__(self, open_session: Callable[[int, int, SoftPrompts], TextSession], limit: int) -> None:
        self._open_session, self._limit = open_session, limit
        self._changed = threading.Condition()
        self._open: list[_Slot] = []
        self._waiting: dict[int, _Prefixes] = {}
        self._paused_until = float("-inf")
        self._full_since: float | None = None

    def hidden_states(
        self,
        shared: SharedPrefix,
        input_ids: torch.Tensor,
        prompts: SoftPrompts,
        record: RouteRecord,
        needed: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Runs the base model on texts with a common prefix (see `Backbone.hidden_states_after`).

        If all texts have the same prefix, each row of the session holds it, and one text after another continues the
        row. Otherwise, each row holds one of the prefixes, and the texts with this prefix continue it.
        Raises `NoCacheError` if no server has had space for a minute, or if this rank may not open a session.
        """
        known = len(record.route)
        while True:
            try:
                outputs = self._in_session(shared, input_ids, prompts, record, needed)
                record.route[known:] = dict.fromkeys(record.route[known:])  # each step records the same servers
                return outputs
            except NoCacheError as error:
                del record.route[known:]
                if not error.transient or self._has_waited():
                    raise
                time.sleep(_BETWEEN_TRIES)

    def _has_waited(self) -> bool:
        """Whether no server has had space for a minute, not even for one session."""
        with self._changed:
            since = self._full_since
            return since is not None and not self._open and time.monotonic() - since > _LONGEST_WAIT

    def _in_session(
        self,
        shared: SharedPrefix,
        input_ids: torch.Tensor,
        prompts: SoftPrompts,
        record: RouteRecord,
        needed: torch.Tensor | None,
    ) -> torch.Tensor:
        rows, held, places = shared.rows, shared.tokens - len(prompts), np.arange(len(input_ids))
        if shared.common == shared.tokens:
            prefixes = input_ids[:1, :held].expand(rows, -1)
        else:
            prefixes, row_of = _distinct(input_ids[:, :held])
            prefixes = torch.cat([prefixes, prefixes[:1].expand(rows - len(prefixes), -1)])
            places = _turns(row_of) * rows + row_of
        wanted = _Prefixes(prefixes, shared.common - len(prompts), shared.length - len(prompts))
        # a row without a text gets the first text, whose outputs are not used
        text_at = np.zeros((int(places.max()) // rows + 1) * rows, dtype=np.int64)
        text_at[places] = np.arange(len(input_ids))
        ways = [input_ids[texts, held:] for texts in np.split(text_at, len(text_at) // rows)]
        with self._session(wanted, prompts) as session:
            width, own = len(prompts) + input_ids.shape[1], input_ids.shape[1] - held
            rows_of_all = torch.arange(len(input_ids) * width) if needed is None else needed
            known = (rows_of_all % width >= shared.tokens).nonzero().flatten()
            # their positions in the outputs of all ways
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
        """Frees the servers' memory; sessions that a thread still uses end with the process."""
        with self._changed:
            self._limit = 0
            idle = [slot for slot in self._open if not slot.users]
            self._open = [slot for slot in self._open if slot.users]
            self._changed.notify_all()
        for slot in idle:
            if slot.session is not None:
                slot.session.close()

    @contextmanager
    def _session(self, wanted: _Prefixes, prompts: SoftPrompts) -> Iterator[TextSession]:
        """Lends a session with the prefixes, possibly to several threads at a time."""
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

    def _prepare(self, slot: _Slot, held: _Prefixes | None, wanted: _Prefixes, prompts: SoftPrompts) -> None:
        """Has the servers of a session compute the prefixes that they have not cached."""
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

    def _take(self, wanted: _Prefixes) -> tuple[_Slot, _Prefixes | None]:
        """Waits for a session with these prefixes, or their common part, or any; or for permission to open one."""
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
                self._changed.notify_all()  # sessions reserved for this thread are free
            error = NoCacheError("no server has space for a session")
            error.transient = self._limit > 0
            raise error

    def _fitting(self, wanted: _Prefixes) -> _Slot | None:
        """Finds the session that fits best; one that does not fit only if no other can be opened or is waited for.

        Enough threads share a session that each of its servers has steps to work on while answers are in transit.
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


def _distinct(prefixes: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """Returns the distinct rows of a tensor in order of appearance, and for each row its number among them."""
    numbers: dict[bytes, int] = {}
    which = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in prefixes.numpy()])
    return prefixes[np.unique(which, return_index=True)[1]], which


def _turns(row_of: np.ndarray) -> np.ndarray:
    """Returns for each text how many texts before it have the same row, int64 of shape [texts]."""
    order = np.argsort(row_of, kind="stable")
    starts = np.searchsorted(row_of[order], row_of)
    turns = np.empty_like(order)
    turns[order] = np.arange(len(order))
    return turns - starts
