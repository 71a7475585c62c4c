"""How many sessions a run may hold on a swarm that others use, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dist_eval.petals.client.petals_version import can_roll_back
from dist_eval.petals.client.routes import Span


class SessionRoom(NamedTuple):
    """Room for sessions.

    Attributes:
        sessions: how many all ranks together may hold; 0 if the servers of some block cannot roll back.
        busy: share of a route's servers that they keep busy, 0 to 1: each session is at one server at a time.
    """

    sessions: int
    busy: float


# Sessions that keep a server busy while answers are on their way; each of them computes the beginning once more
_FOR_A_SERVER = 3

NO_ROOM = SessionRoom(0, 0.0)


def room_for_sessions(free: Mapping[Span, int], blocks: int, share: float, session_tokens: int) -> SessionRoom:
    """Finds how many sessions fit into the servers' memory.

    Args:
        free: attention cache that each server online has left, in tokens times blocks.
        blocks: number of blocks of the model.
        share: of it that the run may take, 0 to 1.
        session_tokens: tokens that a session may hold.
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
