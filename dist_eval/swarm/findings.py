"""What an audit finds out about servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_DISPUTES_LISTED = 20


@dataclass(frozen=True)
class Dispute:
    """A difference between servers that no third server could decide.

    Attributes:
        peers: the servers' peer IDs.
        blocks: first block, and one past the last block.
        difference: between their answers (see `largest_difference`).
        why: why it could not be decided.
    """

    peers: tuple[str, ...]
    blocks: tuple[int, int]
    difference: float
    why: str


@dataclass
class Findings:
    """The results of audits.

    Attributes:
        batches: number of batches that were predicted over a second route.
        alone: batches without a second route, because no other server held any of the blocks.
        unanswered: batches without a second answer, because the other servers failed.
        largest_difference: between logits that count as equal.
        agreed: number of batches in which a server agreed with another one, by server.
        disagreed: number of batches in which it did not, by server.
        faulty: servers that two others agree against.
        disputes: differences that could not be decided.
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
        """Merges the findings of several ranks."""
        return cls(
            batches=sum(findings.batches for findings in ranks),
            alone=sum(findings.alone for findings in ranks),
            unanswered=sum(findings.unanswered for findings in ranks),
            largest_difference=max((findings.largest_difference for findings in ranks), default=0.0),
            agreed=sum((findings.agreed for findings in ranks), Counter()),
            disagreed=sum((findings.disagreed for findings in ranks), Counter()),
            faulty=frozenset().union(*(findings.faulty for findings in ranks)),
            disputes=[dispute for findings in ranks for dispute in findings.disputes],
        )

    def __bool__(self) -> bool:
        return self != Findings()

    def to_record(self) -> dict[str, Any]:
        """Returns all but the faulty servers for a record of the journal, ready for JSON."""
        record = {**asdict(self), "agreed": dict(self.agreed), "disagreed": dict(self.disagreed)}
        del record["faulty"]
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Findings:
        """Builds findings from what `to_record` returned."""
        disputes = [
            Dispute(tuple(dispute["peers"]), tuple(dispute["blocks"]), dispute["difference"], dispute["why"])
            for dispute in record["disputes"]
        ]
        counts = {name: Counter(record[name]) for name in ("agreed", "disagreed")}
        return cls(**{**record, **counts, "disputes": disputes})

    def to_dict(self, fraction: float) -> dict[str, Any]:
        """Returns the section `audit` of `results.json`.

        Args:
            fraction: share of the batches that were to be audited, 0 to 1.
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
