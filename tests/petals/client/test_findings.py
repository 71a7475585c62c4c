"""What audits find out is counted by batch."""

from __future__ import annotations

import pytest

from dist_eval.petals.client.findings import Findings


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        ([Findings(batches=1), Findings(batches=1)], (1, 0, 0)),
        ([Findings(batches=1), Findings(alone=1), Findings(unanswered=1)], (1, 0, 0)),
        ([Findings(unanswered=1), Findings(alone=1)], (0, 1, 0)),
        ([Findings(alone=1), Findings(alone=1)], (0, 0, 1)),
        ([Findings()], (0, 0, 0)),
    ],
)
def test_parts_of_a_batch_count_as_one(parts: list[Findings], counts: tuple[int, int, int]) -> None:
    found = Findings.merged(parts).of_one_batch()
    assert (found.batches, found.unanswered, found.alone) == counts
