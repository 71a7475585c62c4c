"""Texts that are computed from their beginning at each step."""

from __future__ import annotations

import torch

from dist_eval.model.text_session import RecomputedTextSession
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.routes import RouteRecord

IDS = torch.ones(1, 3, dtype=torch.int64)


def test_the_servers_of_all_steps_are_recorded_until_the_text_begins_anew() -> None:
    asked = iter(["first", "second", "third", "fourth"])

    def hidden_states(ids: torch.Tensor, record: RouteRecord | None) -> torch.Tensor:
        assert record is not None
        record.route.append(RouteSegment(next(asked), 0, 4))
        return torch.zeros(*ids.shape, 2)

    session = RecomputedTextSession(hidden_states, rows=1)
    for start, expected in ((None, {"first"}), (None, {"first", "second"}), (0, {"third"})):
        record = RouteRecord()
        session.step(IDS, start, record)
        assert {segment.peer for segment in record.route} == expected
    record = RouteRecord()
    session.continuations([IDS], record)
    assert {segment.peer for segment in record.route} == {"third", "fourth"}
