"""Decides how many sessions a run may keep on a shared swarm."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from dist_eval.errors import NoCacheError
from dist_eval.petals.client.petals_version import can_roll_back
from dist_eval.petals.client.routes import Span

_WORTHWHILE = 1.2  # least gain of sessions, multiplied by the share of servers that they keep busy
# Sessions that keep a server busy while answers travel; each one computes the shared prefix again
_FOR_A_SERVER = 3
# Seconds; other clients keep their caches until their texts are complete
_LONGEST_WAIT_FOR_ROOM, _BETWEEN_TRIES = 600.0, 1.0


class SessionRoom(NamedTuple):
    """Room for sessions."""

    sessions: int  # how many all ranks together may open; 0 if the servers of some block cannot roll back
    busy: float  # share of a route's servers that they keep busy, 0 to 1; a session uses one server at a time

    def pays(self, gain: float) -> bool:
        """Whether sessions beat plain forwards, which keep all servers busy but do `gain` times the work."""
        return self.sessions > 0 and gain * self.busy >= _WORTHWHILE


NO_ROOM = SessionRoom(0, 0.0)


def room_for_sessions(free: Mapping[Span, int], blocks: int, share: float, session_tokens: int) -> SessionRoom:
    """Computes how many sessions of at most `session_tokens` tokens fit into the servers' memory.

    `free` has the free attention cache of each online server, in tokens times blocks; `share` is the share of it that
    the run may take, 0 to 1.
    """
    able = [span for span in free if can_roll_back(span.announced.version)]
    fitting = {span: int(share * free[span] / (span.end - span.start)) // session_tokens for span in able}
    sessions = min(sum(fitting[span] for span in able if span.start <= block < span.end) for block in range(blocks))
    if not sessions:
        return NO_ROOM
    busy = min(1.0, sessions / _servers_on_a_route(able, blocks))
    return SessionRoom(min(sessions, _FOR_A_SERVER * len(able)), busy)


def _servers_on_a_route(spans: Sequence[Span], blocks: int) -> int:
    servers = block = 0
    while block < blocks:
        block = max(span.end for span in spans if span.start <= block < span.end)
        servers += 1
    return servers


def with_room(send: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Sends texts in a session, and waits up to ten minutes for room if no server has any."""
    give_up = time.monotonic() + _LONGEST_WAIT_FOR_ROOM
    while True:
        try:
            return send()
        except NoCacheError as error:
            if not error.transient or time.monotonic() > give_up:
                raise
            time.sleep(_BETWEEN_TRIES)


class CacheSpace:
    """Limits the tokens of a rank's texts in servers' caches; a single text is always admitted. Thread-safe.

    `tokens` returns the limit; it is called once, on first use.
    """

    def __init__(self, tokens: Callable[[], float]) -> None:
        self._tokens = functools.cache(tokens)
        self._taken, self._given_back = 0, threading.Condition()

    @contextmanager
    def taken(self, tokens: int) -> Iterator[None]:
        """Waits for room for a number of tokens, and occupies it within the context."""
        with self._given_back:
            most = self._tokens()
            self._given_back.wait_for(lambda: not self._taken or self._taken + tokens <= most)
            self._taken += tokens
        try:
            yield
        finally:
            with self._given_back:
                self._taken -= tokens
                self._given_back.notify_all()
