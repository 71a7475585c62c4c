"""What audits find out about servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dist_eval.petals.client.records import Audit, AuditedServer, Dispute

_DISPUTES_LISTED = 20


@dataclass
class Findings:
    """The results of audits.

    Attributes:
        batches: number of batches that were recomputed over a second route.
        alone: batches without a second route, because no other server held any of the blocks.
        unanswered: batches without a second answer, because the other servers failed.
        largest_difference: largest difference between logits that count as equal.
        agreed: number of batches in which a server agreed with another one, by server.
        disagreed: number of batches in which it did not, by server.
        faulty: servers that a majority of others disagrees with.
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
        """Returns everything except the faulty servers as a JSON-compatible record of the journal."""
        disputes = [dispute.model_dump() for dispute in self.disputes]
        counts = {"agreed": dict(self.agreed), "disagreed": dict(self.disagreed)}
        record = {**vars(self), **counts, "disputes": disputes}
        del record["faulty"]
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Findings:
        """Builds findings from a record made by `to_record`."""
        disputes = [Dispute(**dispute) for dispute in record["disputes"]]
        counts = {name: Counter(record[name]) for name in ("agreed", "disagreed")}
        return cls(**{**record, **counts, "disputes": disputes})

    def of_one_batch(self) -> Findings:
        """Counts all parts of a batch as one batch, which counts as compared if any part was."""
        unanswered = not self.batches and self.unanswered > 0
        return replace(
            self,
            batches=int(self.batches > 0),
            unanswered=int(unanswered),
            alone=int(not self.batches and not unanswered and self.alone > 0),
        )

    def summary(self, fraction: float) -> Audit:
        """Returns the section `audit` of `results.json`; `fraction` is the share of batches to be audited, 0 to 1."""
        return Audit(
            fraction=fraction,
            batches=self.batches,
            alone=self.alone,
            unanswered=self.unanswered,
            largest_difference=self.largest_difference,
            servers=[
                AuditedServer(
                    peer=peer, agreed=self.agreed[peer], disagreed=self.disagreed[peer], odd=peer in self.faulty
                )
                for peer in sorted({*self.agreed, *self.disagreed, *self.faulty})
            ],
            disputes=len(self.disputes),
            first_disputes=self.disputes[:_DISPUTES_LISTED],
        )
