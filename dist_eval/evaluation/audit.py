"""Audits: sends a share of the batches twice, over different servers, and compares the answers.

Where they differ, both routes are repeated segment by segment: both servers of a segment get the same input, and where
their answers differ, a random sample of the other servers decides by majority. (A random sample, because colluding
servers are a minority of those that hold the blocks.) The outvoted server is faulty: it is excluded, and every batch it
has answered is predicted again (see `journal`). Without a majority, as with only two servers, the dispute is reported.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from dist_eval.data.answers import column_names
from dist_eval.errors import EvaluationError, SwarmError
from dist_eval.inference.forward import checked, checked_answers
from dist_eval.inference.models import ANY_ROUTE, AnsweringModel, SendOptions
from dist_eval.model.backbone import ModelOnBackbone
from dist_eval.model.generation import Generator
from dist_eval.model.swarm_backbone import SwarmBackbone
from dist_eval.petals.client.findings import Findings
from dist_eval.petals.client.records import Dispute, RouteSegment
from dist_eval.petals.client.routes import RouteRecord, Span

TOLERANCES = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest relative difference that counts as agreement, by the dtype that servers compute in.

Each operation of a block has a relative rounding error of about 1e-7, 5e-4 and 4e-3 (half a unit in the last place).
Over tens of blocks, on different hardware, the sum stays well below these bounds; a server that skips, swaps or
quantizes blocks is far above them.
"""

_MOST_ROUNDS, _ROUNDING = 10, 1e-9
_MOST_VOTERS = 5  # Servers that decide a dispute, if there are enough; an odd number


def audited_batches(batches: int, fraction: float) -> frozenset[int]:
    """Returns the numbers of the batches to audit, a fraction (0 to 1) rounded up; the same on any number of ranks."""
    count = max(int(fraction > 0), math.ceil(fraction * batches - _ROUNDING))
    return frozenset(np.random.default_rng(0).choice(batches, size=count, replace=False).tolist())


def trusted_tolerance(dtypes: Iterable[str | None]) -> float:
    """Returns the tolerance of the dtype that most servers announce, so that no server can widen it on its own.

    If several dtypes are equally frequent, the finest one counts.
    """
    counts = Counter(dtype for dtype in dtypes if dtype in TOLERANCES)
    most = max(counts.values(), default=0)
    tolerances = [TOLERANCES[dtype] for dtype, count in counts.items() if count == most]
    return min(tolerances, default=max(TOLERANCES.values()))


def elected(votes: Counter[str], voters: int) -> str:
    """Returns the name with more than half of the votes; empty if there is none."""
    return next((name for name, count in votes.items() if 2 * count > voters), "")


def largest_difference(one: torch.Tensor, other: torch.Tensor, least: float = 1e-12) -> float:
    """Returns the largest distance of corresponding rows of two tensors, relative to the larger of their norms."""
    one, other = one.to(torch.float64), other.to(torch.float64)
    longer = torch.maximum(one.norm(dim=-1), other.norm(dim=-1)).clamp_min(least)
    return float(((one - other).norm(dim=-1) / longer).max()) if one.numel() else 0.0


class AuditedAnswers(NamedTuple):
    """The first answer to an audited batch."""

    answers: np.ndarray
    sent: torch.Tensor  # the token ids that were sent for it, int64 of shape [forwards, length]
    # sends it again with these options; returns the difference of the answers
    compare: Callable[[SendOptions, RouteRecord], float]


class AuditedModel(AnsweringModel):
    """A model on a `SwarmBackbone` that answers some batches twice, over different servers.

    `on_faulty` is called with each server found to be faulty. `tolerance` is the largest relative difference that
    counts as agreement; None takes it from `TOLERANCES`.
    """

    _random = random.SystemRandom()  # servers cannot predict which others will be asked
    _by_token = False  # whether servers are asked in sessions, token by token

    def __init__(
        self,
        model: ModelOnBackbone,
        on_faulty: Callable[[str], None] = lambda server: None,
        tolerance: float | None = None,
    ) -> None:
        if not isinstance(model.backbone, SwarmBackbone):
            raise TypeError("only a model on a swarm can be audited")
        self._model = self._host = model
        self.columns = model.columns
        self._backbone, self._tolerance = model.backbone, tolerance
        self._requests, self._on_faulty = model.backbone.requests, on_faulty

    def _answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        if not options.audited:
            return self._model.answer(input_ids, lengths, options, record)
        answers, route, findings = self._audited(input_ids, lengths)
        record.route += route
        record.findings = Findings.merged([record.findings or Findings(), findings]).of_one_batch()
        return {name: torch.from_numpy(answers[name].copy()) for name in column_names(answers.dtype)}

    def _audited(
        self, input_ids: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[np.ndarray, list[RouteSegment], Findings]:
        """Compares a batch's answers over two routes; repeats that without the servers found to be faulty."""
        for _ in range(_MOST_ROUNDS):
            own, other = RouteRecord(), RouteRecord()
            first, sent, compare = self._answered(input_ids, lengths, own)
            try:
                difference = compare(SendOptions(avoided=tuple(own.route)), other)
            except EvaluationError:
                return first, own.route, Findings(unanswered=1)
            names = _differing_servers(own.route, other.route)
            if not names:
                return first, own.route, Findings(alone=1)
            if difference <= self._tolerated():
                agreed = Findings(batches=1, agreed=Counter(names), largest_difference=difference)
                return first, own.route, agreed
            if difference <= self._tolerated(names):
                why = "it may be the rounding of a dtype that most servers do not compute in"
                return first, own.route, _undecided(names, own.route, difference, why)
            is_split = _covers_twice(own.route) or _covers_twice(other.route)
            if is_split and len(input_ids) == 1:
                why = "a text took several requests, and which of them differed is not known"
                return first, own.route, _undecided(names, own.route, difference, why)
            if is_split:
                answers, route, findings = self._by_halves(input_ids, lengths)
                if self._requests.servers.excluded.isdisjoint(peer for peer, *_ in route):
                    return answers, route, findings
                continue
            faulty, dispute = self._compare_by_parts(sent, own.route, other.route, difference)
            for server in faulty - self._requests.servers.excluded:
                self._on_faulty(server)
            self.exclude(faulty)
            # another batch may have shown meanwhile that one of these servers is faulty
            if self._requests.servers.excluded.isdisjoint(peer for peer, *_ in (*own.route, *other.route)):
                assert dispute is not None
                disputed = Findings(batches=1, disagreed=Counter(dispute.peers), disputes=[dispute])
                return first, own.route, disputed
        return first, own.route, Findings(unanswered=1)

    def _answered(self, input_ids: torch.Tensor, lengths: torch.Tensor, record: RouteRecord) -> AuditedAnswers:
        """Sends a batch for the first time."""
        first = checked_answers(self._model, input_ids, lengths, ANY_ROUTE, record)

        def compare(options: SendOptions, other: RouteRecord) -> float:
            return _answers_apart(first, checked_answers(self._model, input_ids, lengths, options, other))

        return AuditedAnswers(first, self._model.forwards(input_ids, lengths), compare)

    def _by_halves(
        self, input_ids: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[np.ndarray, list[RouteSegment], Findings]:
        """Audits both halves of a batch separately: a server took it in halves, which may have had different routes.

        Returns the answers of the halves: those of the whole batch, which differed, may be a faulty server's.
        """
        halves = [
            self._audited(input_ids[rows], lengths[rows]) for rows in torch.arange(len(input_ids)).tensor_split(2)
        ]
        findings = Findings.merged([findings for _, _, findings in halves])
        route = [segment for _, route, _ in halves for segment in route]
        return np.concatenate([answers for answers, _, _ in halves]), route, findings

    def _tolerated(self, peers: Iterable[str] = ()) -> float:
        """Returns the largest difference that counts as agreement, or as rounding in announced dtypes."""
        if self._tolerance is not None:
            return self._tolerance
        dtypes = {str(span.peer): span.dtype for span in self._requests.servers.spans()}
        trusted = trusted_tolerance(dtypes.values())
        return max([trusted, *(TOLERANCES.get(dtypes.get(peer) or "", trusted) for peer in peers)])

    def _compare_by_parts(
        self, input_ids: torch.Tensor, route: Sequence[RouteSegment], other: Sequence[RouteSegment], difference: float
    ) -> tuple[set[str], Dispute | None]:
        """Repeats two routes segment by segment, and asks other servers where the answers differ."""
        spans, faulty = self._requests.servers.spans(), set[str]()
        hidden = self._backbone.base.embedded(input_ids, self._model.prompts.tokens)
        parts = [(part.start, part.end) for part in (*route, *other)] + [(span.start, span.end) for span in spans]
        cuts = sorted(set(itertools.chain.from_iterable(parts)))
        for start, end in itertools.pairwise(cuts):
            one, another = _server_at(route, start), _server_at(other, start)
            try:
                answer = self._ask(spans, one, start, end, hidden)
                opposite = answer if one == another else self._ask(spans, another, start, end, hidden)
            except SwarmError as error:
                why = f"one did not answer again: {error}"
                return faulty, Dispute(peers=(one, another), blocks=(start, end), difference=difference, why=why)
            apart = largest_difference(answer, opposite)
            if apart <= self._tolerated((one, another)):
                hidden = answer
                continue
            answers = {one: answer, another: opposite}
            confirmed = self._majority(spans, start, end, hidden, answers)
            if not confirmed:
                why = "no third server, or no majority of them, agrees with only one of them"
                return faulty, Dispute(peers=(one, another), blocks=(start, end), difference=apart, why=why)
            faulty |= answers.keys() - {confirmed}
            hidden = answers[confirmed]
        if faulty:
            return faulty, None
        peers = tuple(_differing_servers(route, other))
        why = "asked again part by part, they agreed"
        return faulty, Dispute(peers=peers, blocks=(cuts[0], cuts[-1]), difference=difference, why=why)

    def _majority(
        self, spans: Sequence[Span], start: int, end: int, hidden: torch.Tensor, answers: dict[str, torch.Tensor]
    ) -> str:
        """Returns the server that the majority of a random sample of others agrees with; empty if there is none."""
        holding = {str(span.peer) for span in spans if span.start <= start and end <= span.end} - answers.keys()
        votes, voters = Counter[str](), 0
        for peer in self._random.sample(sorted(holding), len(holding)):
            try:
                opinion = self._ask(spans, peer, start, end, hidden)
            except SwarmError:  # it is gone, or refuses
                continue
            voters += 1
            alike = [
                name
                for name, answer in answers.items()
                if largest_difference(answer, opinion) <= self._tolerated((name, peer))
            ]
            votes.update(alike if len(alike) == 1 else ())
            if voters == _MOST_VOTERS or elected(votes, _MOST_VOTERS):
                break
        return elected(votes, voters)

    def _ask(self, spans: Sequence[Span], peer: str, start: int, end: int, hidden: torch.Tensor) -> torch.Tensor:
        for span in spans:
            if str(span.peer) == peer and span.start <= start and end <= span.end:
                segment = replace(span, start=start, end=end)
                return self._backbone.blocks.ask(segment, hidden, self._model.prompts.deep, by_token=self._by_token)
        raise SwarmError(f"peer {peer} does not hold blocks {start}:{end}")


class AuditedTexts(AuditedModel):
    """A language model on a swarm, some of whose texts are audited.

    Other servers recompute in forwards the hidden states from which each token was chosen. The text itself is not
    generated again: a single token decided by rounding would change everything after it. Where the states differ,
    servers are asked in sessions, because a server that lies in sessions may answer forwards honestly.
    """

    _model: Generator
    _by_token = True

    def _answered(self, input_ids: torch.Tensor, lengths: torch.Tensor, record: RouteRecord) -> AuditedAnswers:
        texts = self._model.generate(input_ids, lengths, record)

        def compare(options: SendOptions, other: RouteRecord) -> float:
            again = self._model.hidden_states(texts.sent, texts.lengths, options, other)[texts.places]
            return largest_difference(texts.states, again.to(texts.states))

        return AuditedAnswers(checked(self.columns, texts.answer, len(lengths)), texts.sent, compare)


def _undecided(names: Sequence[str], route: Sequence[RouteSegment], difference: float, why: str) -> Findings:
    """Returns the findings of a batch where it is not known which server of a route is at fault."""
    blocks = (0, max(segment.end for segment in route))
    dispute = Dispute(peers=tuple(names), blocks=blocks, difference=difference, why=why)
    return Findings(batches=1, disagreed=Counter(names), disputes=[dispute])


def _answers_apart(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the largest relative difference between two answers to one example, in any column."""
    apart = []
    for name in column_names(first.dtype):
        width = int(np.prod(first.dtype[name].shape))
        one, other = (answers[name].astype(np.float64).reshape(len(answers), width) for answers in (first, second))
        apart.append(largest_difference(torch.from_numpy(one), torch.from_numpy(other), least=1.0))
    return max(apart)


def _differing_servers(route: Sequence[RouteSegment], other: Sequence[RouteSegment]) -> list[str]:
    blocks = {block for segment in route for block in range(segment.start, segment.end)}
    pairs = [(_server_at(route, block), _server_at(other, block)) for block in sorted(blocks)]
    return list(dict.fromkeys(peer for pair in pairs if pair[0] != pair[1] for peer in pair))


def _server_at(route: Sequence[RouteSegment], block: int) -> str:
    return next(segment.peer for segment in route if segment.start <= block < segment.end)


def _covers_twice(route: Sequence[RouteSegment]) -> bool:
    """Returns whether a batch was sent in halves, each over its own route."""
    return sum(segment.end - segment.start for segment in route) > max(segment.end for segment in route)
