"""Routes of requests: the blocks of servers, segments to avoid, and the record of a batch's route."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dist_eval.petals.client.findings import Findings
from dist_eval.petals.client.records import Announcement, RouteSegment

# Bounds of announced speeds, beyond which times would be infinite or zero
_LEAST_RPS, _MOST_RPS = 1e-3, 1e12

UNKNOWN = Announcement()
"""Announcement of an unknown server."""


@dataclass(frozen=True)
class Span:
    """Consecutive blocks that one server holds."""

    peer: Any
    start: int
    end: int  # one past its last block
    announced: Announcement = UNKNOWN  # how the server computes
    forward_rps: float | None = None  # announced tokens per second through one block; None if not announced

    @property
    def dtype(self) -> str | None:
        """Name of the dtype that it computes in; None if unknown."""
        return self.announced.dtype

    @property
    def seconds_per_work(self) -> float | None:
        """Announced seconds for one token through one block; None if not announced or not positive."""
        rps = self.forward_rps
        return 1.0 / min(max(rps, _LEAST_RPS), _MOST_RPS) if rps is not None and rps > 0 else None


@dataclass
class RouteRecord:
    """How a batch was computed."""

    route: list[RouteSegment] = field(default_factory=list)  # the servers that computed it, filled in as they answer
    fell_back: bool = False  # whether it took plain forwards although a shared prefix was planned
    findings: Findings | None = None  # results of the audit


def covers(spans: Sequence[Span], start: int, end: int) -> bool:
    """Whether servers hold all blocks from `start` to `end`."""
    return all(any(span.start <= block < span.end for span in spans) for block in range(start, end))


def without(spans: Sequence[Span], avoided: Sequence[RouteSegment]) -> list[Span]:
    """Removes avoided segments from spans where another server holds the same blocks."""
    if not avoided:
        return list(spans)
    held: dict[int, set[str]] = {}
    for span in spans:
        for block in range(span.start, span.end):
            held.setdefault(block, set()).add(str(span.peer))
    unwanted: dict[int, set[str]] = {}
    for segment in avoided:
        for block in range(segment.start, segment.end):
            if block in held and not held[block] <= unwanted.get(block, set()) | {segment.peer}:
                unwanted.setdefault(block, set()).add(segment.peer)
    left = []
    for span in spans:
        kept = [block for block in range(span.start, span.end) if str(span.peer) not in unwanted.get(block, ())]
        for _, run in itertools.groupby(enumerate(kept), key=lambda pair: pair[1] - pair[0]):
            blocks = [block for _, block in run]
            left.append(replace(span, start=blocks[0], end=blocks[-1] + 1))
    return left
