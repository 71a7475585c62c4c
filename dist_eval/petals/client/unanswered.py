"""Requests that a server, or a chain of servers, holds: sent and not answered yet. Does no I/O but for shared state.

Ranks of one host share it, so that all their requests are paced as one. What a rank that hangs has sent is forgotten
after a while.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from dist_eval.process.shared_state import SharedStates


@dataclass(frozen=True)
class Ticket:
    """A request that was let through."""

    work: int  # tokens times blocks
    sent_at: float  # in seconds of `time.monotonic()`
    expected_at: float  # when its answer should be here, less the corrections until it was sent
    period: int = 0  # in which it was sent


class Unanswered(ctypes.Structure):
    """Counts of requests. Times are in seconds of `time.monotonic()`, work is in tokens times blocks."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("waiting", ctypes.c_int64),  # work that may not be sent yet, or is in steps of sessions
        ("unanswered", ctypes.c_int64),  # requests
        ("unanswered_work", ctypes.c_int64),
        ("period", ctypes.c_int64),  # number of periods so far (see `forget`)
        ("period_began", ctypes.c_double),
        ("unanswered_before", ctypes.c_int64),  # of them, those sent in the period before
        ("unanswered_work_before", ctypes.c_int64),
    )


def settle(state: Unanswered, ticket: Ticket) -> bool:
    """Removes a request from those that are unanswered; returns whether it was among them, not forgotten."""
    if ticket.period < state.period - 1:
        return False
    if ticket.period < state.period:
        state.unanswered_before -= 1
        state.unanswered_work_before -= ticket.work
    state.unanswered -= 1
    state.unanswered_work -= ticket.work
    return True


def forget(state: Unanswered, now: float, period: float) -> None:
    """Begins a new period if it is time; after a long pause two of them, because all requests are older.

    What was sent before the period before, and what waited, is not counted any more.
    """
    state.period_began = state.period_began or now
    over = min(2, int((now - state.period_began) // period))
    for _ in range(over):
        state.unanswered -= state.unanswered_before
        state.unanswered_work -= state.unanswered_work_before
        state.unanswered_before, state.unanswered_work_before = state.unanswered, state.unanswered_work
        state.period, state.period_began, state.waiting = state.period + 1, now, 0


State = TypeVar("State", bound=Unanswered)


class UnansweredRequests(Generic[State]):
    """The requests that a server or a chain holds, beside further fields of `kind`.

    Args:
        kind: of the state.
        shared: shares the state with the other ranks of this host.
        name: of the server or chain.
        period: seconds after which requests are forgotten (see `forget`).
    """

    def __init__(self, kind: type[State], shared: SharedStates | None, name: str, period: float) -> None:
        self._pace = shared.open(name, kind) if shared else kind()
        self._shared, self._period, self._seen, self._waiting = shared, period, 0, 0

    def add_waiting(self, work: int) -> None:
        """Records work that waits; a negative number is work that does so no longer."""
        with self._locked():
            self._pace.waiting += work
            self._waiting += work

    @contextmanager
    def _locked(self, now: float | None = None) -> Iterator[None]:
        with self._shared.locked() if self._shared else contextlib.nullcontext():
            if now is not None:
                forget(self._pace, now, self._period)
            if self._seen != self._pace.period:
                self._seen = self._pace.period
                self._pace.waiting += self._waiting  # only ranks that do not hang get here
            yield
