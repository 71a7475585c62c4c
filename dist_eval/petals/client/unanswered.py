"""Counts the requests that a server, or a chain of servers, has not answered yet. Does no I/O except on shared state.

The ranks of a host share these counts, so all their requests are paced together. Requests of a rank that hangs are
forgotten after a while.
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
    expected_at: float  # when its answer should arrive, without the corrections made before it was sent
    period: int = 0  # when it was sent


class Unanswered(ctypes.Structure):
    """Counts of requests. Times are in seconds of `time.monotonic()`, work is in tokens times blocks."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("steps", ctypes.c_int64),  # work of unanswered steps of sessions, which are not counted below
        ("unanswered", ctypes.c_int64),  # requests
        ("unanswered_work", ctypes.c_int64),
        ("period", ctypes.c_int64),  # number of periods so far (see `forget`)
        ("period_began", ctypes.c_double),
        ("unanswered_before", ctypes.c_int64),  # those sent before this period
        ("unanswered_work_before", ctypes.c_int64),
    )


def settle(state: Unanswered, ticket: Ticket) -> bool:
    """Removes a request from the unanswered ones; returns False if it was already forgotten."""
    if ticket.period < state.period - 1:
        return False
    if ticket.period < state.period:
        state.unanswered_before -= 1
        state.unanswered_work_before -= ticket.work
    state.unanswered -= 1
    state.unanswered_work -= ticket.work
    return True


def forget(state: Unanswered, now: float, period: float) -> None:
    """Begins a new period when the current one is over, or two after a long pause, when all requests are old.

    Requests sent before the previous period are no longer counted, nor are steps of sessions.
    """
    state.period_began = state.period_began or now
    over = min(2, int((now - state.period_began) // period))
    for _ in range(over):
        state.unanswered -= state.unanswered_before
        state.unanswered_work -= state.unanswered_work_before
        state.unanswered_before, state.unanswered_work_before = state.unanswered, state.unanswered_work
        state.period, state.period_began, state.steps = state.period + 1, now, 0


State = TypeVar("State", bound=Unanswered)


class UnansweredRequests(Generic[State]):
    """The unanswered requests of a server or chain; `kind` is the class of their state, and may have more fields.

    `shared` shares the state with the other ranks of this host, under `name`, that of the server or chain. Requests are
    forgotten after `period` seconds (see `forget`).
    """

    def __init__(self, kind: type[State], shared: SharedStates | None, name: str, period: float) -> None:
        self._pace = shared.open(name, kind) if shared else kind()
        self._shared, self._period, self._seen, self._steps = shared, period, 0, 0

    @property
    def unanswered(self) -> int:
        """Number of requests without an answer."""
        return self._pace.unanswered

    def add_steps(self, work: int) -> None:
        """Records work of steps of sessions; a negative number is work that was answered."""
        with self._locked():
            self._pace.steps += work
            self._steps += work

    @contextmanager
    def _locked(self, now: float | None = None) -> Iterator[None]:
        with self._shared.locked() if self._shared else contextlib.nullcontext():
            if now is not None:
                forget(self._pace, now, self._period)
            if self._seen != self._pace.period:
                self._seen = self._pace.period
                self._pace.steps += self._steps  # a rank that hangs does not get here
            yield
