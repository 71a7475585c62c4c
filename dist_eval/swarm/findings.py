"""What an audit finds out about servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_DISPUTES_LISTED = 20


@dataclass(frozen=True)
class Dispute:
    """Servers that differ, where nobody can tell which one is right.

    Attributes:
        peers: their names.
        blocks: first block, and one past the last block.
        difference: of their answers (see `largest_difference`).
        why: that it cannot be settled.
    """

    peers: tuple[str, ...]
    blocks: tuple[int, int]
    difference: float
    why: str


@dataclass
class Findings:
    """What an audit has found.

    Attributes:
        batches: that got a second opinion.
        alone: batches without one, because no other server held any of the blocks.
        unanswered: batches without one, because the other servers failed.
        largest_difference: between logits that count as equal.
        agreed: confirmed opinions, by server.
        disagreed: opinions that were not confirmed, by server.
        faulty: servers that two others agree against.
        disputes: what could not be settled.
    """

    batches: int = 0
    alone: int = 0
    unanswered: int = 0
    largest_difference: float = 0.0
    agreed: Counter[str] = field(default_factory=Counter)
    disagreed: Counter[str] = field(default_factory=Counter)
    faulty: frozenset[str] = frozenset()
    disputes: list[Dispute] = field(default_factory=list)

    @classmethod
    def merged(cls, ranks: Sequence[Findings]) -> Findings:
        """Joins what several ranks have found."""
        return cls(
            batches=sum(one.batches for one in ranks),
            alone=sum(one.alone for one in ranks),
            unanswered=sum(one.unanswered for one in ranks),
            largest_difference=max((one.largest_difference for one in ranks), default=0.0),
            agreed=sum((one.agreed for one in ranks), Counter()),
            disagreed=sum((one.disagreed for one in ranks), Counter()),
            faulty=frozenset().union(*(one.faulty for one in ranks)),
            disputes=[dispute for one in ranks for dispute in one.disputes],
        )

    def __bool__(self) -> bool:
        return self != Findings()

    def to_notes(self) -> dict[str, Any]:
        """Returns all but the faulty servers, ready for JSON."""
        notes = {**asdict(self), "agreed": dict(self.agreed), "disagreed": dict(self.disagreed)}
        del notes["faulty"]
        return notes

    @classmethod
    def of_notes(cls, notes: Mapping[str, Any]) -> Findings:
        """Makes findings of what `to_notes` returned."""
        disputes = [
            Dispute(tuple(one["peers"]), tuple(one["blocks"]), one["difference"], one["why"])
            for one in notes["disputes"]
        ]
        counts = {name: Counter(notes[name]) for name in ("agreed", "disagreed")}
        return cls(**{**notes, **counts, "disputes": disputes})

    def to_dict(self, fraction: float) -> dict[str, Any]:
        """Returns the section `audit` of `results.json`.

        Args:
            fraction: share of the batches that were to be audited.
        """
        return {
            "fraction": fraction,
            "batches": self.batches,
            "alone": self.alone,
            "unanswered": self.unanswered,
            "largest_difference": self.largest_difference,
            "servers": [
                {
                    "peer": peer,
                    "agreed": self.agreed[peer],
                    "disagreed": self.disagreed[peer],
                    "odd": peer in self.faulty,
                }
                for peer in sorted({*self.agreed, *self.disagreed, *self.faulty})
            ],
            "disputes": len(self.disputes),
            "first_disputes": [asdict(dispute) for dispute in self.disputes[:_DISPUTES_LISTED]],
        }
