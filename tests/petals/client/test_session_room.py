"""How many sessions there is room for: decided from what servers announce, and what they have left."""

from __future__ import annotations

import pytest

from dist_eval.petals.client.records import Announcement
from dist_eval.petals.client.routes import Span
from dist_eval.petals.client.session_room import NO_ROOM, SessionRoom, room_for_sessions

MAIN, RELEASE = Announcement(version="2.3.0.dev2"), Announcement(version="2.2.0.post1")


def room(*servers: tuple[int, int, int, Announcement], share: float = 0.5) -> SessionRoom:
    """Servers: first and last block, tokens that they have left, version; of a model with 8 blocks."""
    spans = {
        Span(str(n), start, end, announced): tokens * (end - start)
        for n, (start, end, tokens, announced) in enumerate(servers)
    }
    return room_for_sessions(spans, 8, share, 1024)


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ([(0, 4, 4096, MAIN), (4, 8, 4096, MAIN)], SessionRoom(2, 1.0)),  # Petals' default
        ([(0, 4, 16384, MAIN), (4, 8, 16384, MAIN)], SessionRoom(6, 1.0)),  # with grouped-query attention
        ([(0, 8, 4096, MAIN), (0, 8, 4096, MAIN)], SessionRoom(4, 1.0)),  # replicas
        ([(n, n + 1, 4096, MAIN) for n in range(8)], SessionRoom(2, 0.25)),  # most of the servers would wait
        ([(0, 4, 4096, MAIN), (4, 8, 2100, MAIN)], SessionRoom(1, 0.5)),
        ([(0, 4, 4096, MAIN), (4, 8, 2000, MAIN)], NO_ROOM),
        ([(0, 4, 4096, MAIN), (4, 8, 4096, RELEASE)], NO_ROOM),  # it cannot roll back
        ([(0, 4, 4096, MAIN)], NO_ROOM),
        ([], NO_ROOM),
    ],
)
def test_as_many_sessions_as_fit_on_every_block(
    servers: list[tuple[int, int, int, Announcement]], expected: SessionRoom
) -> None:
    assert room(*servers) == expected


def test_a_run_takes_no_more_than_its_share() -> None:
    servers = [(0, 4, 4096, MAIN), (4, 8, 4096, MAIN)]
    assert [room(*servers, share=share).sessions for share in (1.0, 0.75, 0.2, 0.0)] == [4, 3, 0, 0]
