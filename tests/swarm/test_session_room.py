"""How many sessions there is room for: decided from what servers announce, and what they have left."""

from __future__ import annotations

import pytest

from dist_eval.results.work import Announcement
from dist_eval.swarm.router import Span
from dist_eval.swarm.session_room import NO_ROOM, SessionRoom, room_for_sessions

MAIN, RELEASE = Announcement(version="2.3.0.dev2"), Announcement(version="2.2.0.post1")


def room(*servers: tuple[int, int, int, Announcement], share: float = 0.5) -> SessionRoom:
    """Servers: first and last block, tokens that they have left, version; of a model with 8 blocks."""
    spans = {
        Span(str(n), start, end, announced): tokens * (end - start)
        for n, (start, end, tokens, announced) in enumerate(servers)
    }
    return room_for_sessions(list(spans), spans, 8, share)


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ([(0, 4, 4096, MAIN), (4, 8, 4096, MAIN)], SessionRoom(1024, 2)),  # Petals' default
        ([(0, 4, 16384, MAIN), (4, 8, 16384, MAIN)], SessionRoom(2048, 4)),  # with grouped-query attention
        ([(0, 8, 4096, MAIN), (0, 8, 4096, MAIN)], SessionRoom(2048, 2)),  # replicas
        ([(n, n + 1, 4096, MAIN) for n in range(8)], SessionRoom(256, 8)),  # none of eight servers should idle
        ([(0, 4, 4096, MAIN), (4, 8, 600, MAIN)], SessionRoom(256, 1)),
        ([(0, 4, 4096, MAIN), (4, 8, 100, MAIN)], NO_ROOM),
        ([(0, 4, 4096, MAIN), (4, 8, 4096, RELEASE)], NO_ROOM),  # it cannot roll back
        ([(0, 4, 4096, MAIN)], NO_ROOM),
        ([], NO_ROOM),
    ],
)
def test_the_largest_sessions_of_which_each_server_of_a_route_has_one(
    servers: list[tuple[int, int, int, Announcement]], expected: SessionRoom
) -> None:
    assert room(*servers) == expected


def test_a_run_takes_no_more_than_its_share() -> None:
    servers = [(0, 4, 4096, MAIN), (4, 8, 4096, MAIN)]
    assert room(*servers, share=1.0) == SessionRoom(2048, 2)
    assert room(*servers, share=0.1) == SessionRoom(256, 1)
    assert room(*servers, share=0.0) == NO_ROOM
