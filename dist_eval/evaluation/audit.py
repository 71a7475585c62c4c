"""Second opinions: a share of the batches is sent twice, over different servers, and the logits are compared.

Where they differ, the way is walked again: each part of it is asked of both servers that had a hand in it, with the
same input, and where those two differ, of a third one. The one that the third does not agree with is odd: it is asked
no more, and whatever it had answered counts as never answered (see `journal`). With two servers only, nobody can tell
which one is right, and the dispute is reported.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from dist_eval.errors import EvaluationError, SwarmError
from dist_eval.model.backbone import SwarmBackbone
from dist_eval.model.classifier import Classifier
from dist_eval.swarm.findings import Dispute, Findings
from dist_eval.swarm.router import RouteSegment, Routing, Span

TOLERANCES = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest relative difference that counts as agreement, by the coarsest dtype that a server on the way computes in.

Rounding makes one of about 1e-7, 5e-4 and 4e-3 (half the last place, relative) in each of a few operations of a block;
over tens of blocks, computed on other hardware, the sum stays well below these bounds, and a server that skips, swaps
or quantises blocks is far above them.
"""

_MOST_ROUNDS, _ROUNDING = 10, 1e-9


def audited_batches(batches: int, fraction: float) -> frozenset[int]:
    """Chooses the batches to audit: the same ones on any number of ranks.

    Args:
        batches: number of batches of the plan.
        fraction: share of them, 0 to 1; rounded up.

    Returns:
        Their numbers.
    """
    count = max(int(fraction > 0), math.ceil(fraction * batches - _ROUNDING))
    return frozenset(np.random.default_rng(0).choice(batches, size=count, replace=False).tolist())


def largest_difference(one: torch.Tensor, other: torch.Tensor, least: float = 1e-12) -> float:
    """Measures how far two tensors are apart, by the row that differs most.

    Args:
        one: floats of shape [..., width].
        other: floats of the same shape.
        least: rows shorter than this count as this long.

    Returns:
        The largest Euclidean distance of two rows, relative to the longer one of them.
    """
    one, other = one.to(torch.float64), other.to(torch.float64)
    longer = torch.maximum(one.norm(dim=-1), other.norm(dim=-1)).clamp_min(least)
    return float(((one - other).norm(dim=-1) / longer).max()) if one.numel() else 0.0


class Audit:
    """A classifier on a swarm that asks for a second opinion about some batches.

    Args:
        classifier: it, on a `SwarmBackbone`.
        on_faulty: called with each server that is found odd.
        tolerance: largest relative difference that counts as agreement; None takes it from `TOLERANCES`.
    """

    def __init__(
        self,
        classifier: Classifier,
        on_faulty: Callable[[str], None] = lambda server: None,
        tolerance: float | None = None,
    ) -> None:
        if not isinstance(classifier.backbone, SwarmBackbone):
            raise TypeError("only a classifier on a swarm can be audited")
        self._classifier, self._backbone, self._tolerance = classifier, classifier.backbone, tolerance
        self._requests, self._on_odd = classifier.backbone.requests, on_faulty

    @property
    def num_labels(self) -> int:
        """Width of the head."""
        return self._classifier.num_labels

    @property
    def retries(self) -> int:
        """Requests that had to be repeated so far."""
        return self._classifier.retries

    def exclude(self, servers: Iterable[str]) -> None:
        """Asks servers no more, whoever found them odd."""
        self._classifier.exclude(servers)

    def logits(self, input_ids: torch.Tensor, lengths: torch.Tensor, routing: Routing) -> torch.Tensor:
        """Classifies a batch (see `Classifier.logits`); if the trip is audited, more than once."""
        if not routing.audited:
            return self._classifier.logits(input_ids, lengths, routing)
        for _ in range(_MOST_ROUNDS):
            own = Routing()
            first = self._classifier.logits(input_ids, lengths, own)
            found = self._second_opinion(input_ids, lengths, own.route, first)
            if found is not None:
                routing.findings = Findings.merged([routing.findings or Findings(), found])
                break
        routing.route += own.route
        return first

    def _second_opinion(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, route: Sequence[RouteSegment], first: torch.Tensor
    ) -> Findings | None:
        """Compares a batch's logits with those of another way; None if it has to be done again without odd servers."""
        other = Routing(avoided=tuple(route))
        try:
            second = self._classifier.logits(input_ids, lengths, other)
        except EvaluationError:
            return Findings(unanswered=1)
        names = _who_parted(route, other.route)
        if not names:
            return Findings(alone=1)
        difference = largest_difference(first, second, least=1.0)
        if difference <= self._tolerated(names):
            return Findings(batches=1, agreed=Counter(names), largest_difference=difference)
        if _covers_twice(route) or _covers_twice(other.route):
            return self._by_halves(input_ids, lengths)
        faulty, dispute = self._compare_by_parts(input_ids, route, other.route, difference)
        for server in faulty - self._requests.excluded:
            self._on_odd(server)
        self.exclude(faulty)
        # another batch may have shown meanwhile that one of these servers is odd
        if not self._requests.excluded.isdisjoint(peer for peer, *_ in (*route, *other.route)):
            return None
        assert dispute is not None
        return Findings(batches=1, disagreed=Counter(dispute.peers), disputes=[dispute])

    def _by_halves(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> Findings | None:
        """Does the same with each half of a batch that a server took in halves, which may have gone different ways."""
        known, found = set(self._requests.excluded), []
        for rows in torch.arange(len(input_ids)).tensor_split(2):
            routing = Routing(audited=True)
            self.logits(input_ids[rows], lengths[rows], routing)
            found.append(routing.findings or Findings())
        if self._requests.excluded != known:
            return None
        both = Findings.merged(found)
        return replace(both, batches=int(both.batches > 0), alone=0, unanswered=int(both.batches == 0))

    def _tolerated(self, peers: Sequence[str]) -> float:
        if self._tolerance is not None:
            return self._tolerance
        dtypes = {str(span.peer): span.dtype for span in self._requests.spans()}
        coarsest = max(TOLERANCES.values())
        return max(TOLERANCES.get(dtypes.get(peer) or "", coarsest) for peer in peers)

    def _compare_by_parts(
        self, input_ids: torch.Tensor, route: Sequence[RouteSegment], other: Sequence[RouteSegment], difference: float
    ) -> tuple[set[str], Dispute | None]:
        """Walks two ways side by side, and asks third servers where they part."""
        spans, faulty = self._requests.spans(), set[str]()
        hidden = self._backbone.embedded(input_ids, self._classifier.tuned.prompts)
        parts = [*route, *other, *((str(span.peer), span.start, span.end) for span in spans)]
        cuts = sorted({block for _, start, end in parts for block in (start, end)})
        for start, end in itertools.pairwise(cuts):
            one, another = _server_at(route, start), _server_at(other, start)
            try:
                answer = self._ask(spans, one, start, end, hidden)
                opposite = answer if one == another else self._ask(spans, another, start, end, hidden)
            except SwarmError as error:
                return faulty, Dispute((one, another), (start, end), difference, f"one did not answer again: {error}")
            apart, tolerated = largest_difference(answer, opposite), self._tolerated((one, another))
            if apart <= tolerated:
                hidden = answer
                continue
            likes, judge = self._third_opinion(spans, start, end, hidden, {one: answer, another: opposite}, tolerated)
            if judge is None:
                return faulty, Dispute(
                    (one, another), (start, end), apart, "no third server agrees with only one of them"
                )
            faulty.add(another if likes == one else one)
            hidden = judge
        if faulty:
            return faulty, None
        peers = tuple(_who_parted(route, other))
        return faulty, Dispute(peers, (cuts[0], cuts[-1]), difference, "asked again part by part, they agreed")

    def _third_opinion(
        self,
        spans: Sequence[Span],
        start: int,
        end: int,
        hidden: torch.Tensor,
        answers: Mapping[str, torch.Tensor],
        tolerated: float,
    ) -> tuple[str, torch.Tensor | None]:
        """Returns the one of two servers that a third one agrees with, and that one's answer; None if there is none."""
        for peer in dict.fromkeys(str(span.peer) for span in spans):
            if peer in answers:
                continue
            try:
                judge = self._ask(spans, peer, start, end, hidden)
            except SwarmError:  # it is gone, or does not hold these blocks
                continue
            liked = [name for name, answer in answers.items() if largest_difference(answer, judge) <= tolerated]
            if len(liked) == 1:
                return liked[0], judge
        return "", None

    def _ask(self, spans: Sequence[Span], peer: str, start: int, end: int, hidden: torch.Tensor) -> torch.Tensor:
        for span in spans:
            if str(span.peer) == peer and span.start <= start and end <= span.end:
                segment = Span(span.peer, start, end, span.dtype)
                return self._requests.ask(segment, hidden, self._classifier.tuned.deep_prompts)
        raise SwarmError(f"peer {peer} does not hold blocks {start}:{end}")


def _who_parted(route: Sequence[RouteSegment], other: Sequence[RouteSegment]) -> list[str]:
    """Returns the servers of two ways, without those blocks that have the same server on both."""
    blocks = {block for _, start, end in route for block in range(start, end)}
    parted = [(_server_at(route, block), _server_at(other, block)) for block in sorted(blocks)]
    return list(dict.fromkeys(peer for pair in parted if pair[0] != pair[1] for peer in pair))


def _server_at(route: Sequence[RouteSegment], block: int) -> str:
    return next(peer for peer, start, end in route if start <= block < end)


def _covers_twice(route: Sequence[RouteSegment]) -> bool:
    """Whether a batch was sent in halves, each on a way of its own."""
    return sum(end - start for _, start, end in route) > max(end for *_, end in route)
