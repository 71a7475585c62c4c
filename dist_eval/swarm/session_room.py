"""How many sessions a run may hold on a swarm that others use, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dist_eval.swarm.petals_version import can_roll_back
from dist_eval.swarm.router import Span

SESSION_TOKENS = (2048, 1024, 512, 256)
"""Sizes of a session, in tokens of all its texts. Petals' servers hold 4096 by default, or 16384 with grouped-query
attention; with fewer than a few hundred, a session holds no row of a long prompt."""

_LEAST_SESSIONS = 2
"""Sessions that a run should hold at least: while one waits for its answer, another one is computed."""


class SessionRoom(NamedTuple):
    """Room for sessions.

    Attributes:
        session_tokens: tokens that a session may hold; 0 without room.
        sessions: how many all ranks together may hold.
    """

    session_tokens: int
    sessions: int


NO_ROOM = SessionRoom(0, 0)


def room_for_sessions(
    spans: Sequence[Span],
    free: Mapping[Span, int],
    blocks: int,
    share: float,
    sizes: Sequence[int] = SESSION_TOKENS,
) -> SessionRoom:
    """Finds the largest sessions of which there may be one for each server of a route, so that none has to idle.

    Args:
        spans: the blocks that are online.
        free: attention cache that each of them has left, in tokens times blocks.
        blocks: number of blocks of the model.
        share: of it that the run may take, 0 to 1.
        sizes: sizes of a session to choose from, the largest one first.

    Returns:
        The room; less than one session for each server if there is no more, and none if the servers of some block
        cannot roll back.
    """
    able = [span for span in spans if can_roll_back(span.announced.version)]
    tokens = {span: int(share * free[span] / (span.end - span.start)) for span in able}
    wanted = max(_LEAST_SESSIONS, _servers_on_a_route(able, blocks))
    found = NO_ROOM
    for size in sizes:
        sessions = min(
            sum(tokens[span] // size for span in able if span.start <= block < span.end) for block in range(blocks)
        )
        if sessions:
            found = SessionRoom(size, sessions)
        if sessions >= wanted:
            break
    return found


def _servers_on_a_route(spans: Sequence[Span], blocks: int) -> int:
    servers = block = 0
    while block < blocks:
        ends = [span.end for span in spans if span.start <= block < span.end]
        if not ends:
            return servers
        servers, block = servers + 1, max(ends)
    return servers
