"""Audits on real servers, one of which computes with other weights."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ForkedSwarm, SwarmClient, requests_of, results_of, run_here
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import edited_tensors

from dist_eval import demo
from dist_eval.evaluation.audit import (
    TOLERANCES,
    AuditedModel,
    audited_batches,
    elected,
    largest_difference,
    trusted_tolerance,
)
from dist_eval.inference.models import SendOptions
from dist_eval.model.classifier import Classifier, load_locally
from dist_eval.petals.client.findings import Findings
from dist_eval.petals.client.records import AuditedServer, Dispute
from dist_eval.petals.client.requests import SwarmRequests
from dist_eval.petals.client.routes import RouteRecord, Span
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.petals.server.private import PrivateSwarm

AUDITED = SendOptions(audited=True)

LIAR = 2


@given(st.integers(1, 500), st.floats(0, 1))
def test_as_many_batches_are_audited_as_asked_for_and_always_the_same(batches: int, fraction: float) -> None:
    chosen = audited_batches(batches, fraction)
    assert chosen == audited_batches(batches, fraction)
    assert chosen <= set(range(batches))
    assert -1e-6 < len(chosen) - fraction * batches <= 1
    assert bool(chosen) == (fraction > 0)


def test_the_row_that_differs_most_is_the_difference() -> None:
    one = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    assert largest_difference(one, one) == 0.0
    assert largest_difference(one, one * torch.tensor([[1.0], [0.5]])) == pytest.approx(0.5)
    assert largest_difference(one, one * torch.tensor([[0.5], [1.0]])) == pytest.approx(0.5)
    small = one * 1e-3
    assert largest_difference(small, -small) == pytest.approx(2.0)
    assert largest_difference(small, -small, least=1.0) == pytest.approx(0.01)


@given(st.dictionaries(st.sampled_from(sorted(TOLERANCES)), st.integers(1, 4), min_size=1), st.integers(0, 20))
def test_no_minority_widens_what_counts_as_agreement(honest: dict[str, int], liars: int) -> None:
    dtypes = [dtype for dtype, count in honest.items() for _ in range(count)]
    most = max(honest.values())
    tolerance = trusted_tolerance(dtypes)
    assert tolerance == min(TOLERANCES[dtype] for dtype, count in honest.items() if count == most)
    assert trusted_tolerance([*dtypes, *["anything", None] * liars]) == tolerance
    few = (most - 1) if "bfloat16" not in honest else 0
    assert trusted_tolerance([*dtypes, *["bfloat16"] * few]) == tolerance
    assert trusted_tolerance([]) == max(TOLERANCES.values())


@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 7))
def test_who_has_more_than_half_of_the_votes_is_right(one: int, other: int, neither: int) -> None:
    winner = elected(Counter(one=one, other=other), one + other + neither)
    assert (winner == "one") == (one > other + neither)
    assert (winner == "other") == (other > one + neither)


def test_what_ranks_found_is_joined() -> None:
    dispute = Dispute(peers=("a", "b"), blocks=(0, 2), difference=0.5, why="no third server")
    ranks = [
        Findings(batches=2, largest_difference=1e-6, agreed=Counter(a=2, b=1)),
        Findings(batches=1, alone=3, disagreed=Counter(a=1), faulty=frozenset("a"), disputes=[dispute] * 30),
    ]
    audit = Findings.merged(ranks).summary(0.1)
    assert audit.servers == [
        AuditedServer(peer="a", agreed=2, disagreed=1, odd=True),
        AuditedServer(peer="b", agreed=1, disagreed=0, odd=False),
    ]
    assert (audit.fraction, audit.batches, audit.alone, audit.unanswered) == (0.1, 3, 3, 0)
    assert (audit.disputes, len(audit.first_disputes)) == (30, 20)
    for one in ranks:
        again = Findings.from_record(json.loads(json.dumps(one.to_record())))
        assert dataclasses.replace(again, faulty=one.faulty) == one
    assert Findings.merged(ranks)
    assert not Findings()


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's base model with one of its matrices exchanged."""
    folder = tmp_path_factory.mktemp("other") / "base"
    shutil.copytree(demo.BASE_MODEL, folder)
    with edited_tensors(folder) as tensors:
        name = next(name for name in tensors if "layers.2" in name and "down_proj" in name)
        tensors[name] = tensors[name].flip(0).contiguous()
    return folder


class SwarmWithLiar(ForkedSwarm):
    """A swarm of which one server computes with other weights."""

    other_weights = ""

    def start_server(self, number: int) -> None:
        self.model = self.other_weights if number == LIAR else str(demo.BASE_MODEL)
        super().start_server(number)

    @property
    def liar(self) -> str:
        return self.peers[LIAR]


@pytest.fixture(scope="module")
def swarm(other_weights: Path) -> Iterator[SwarmWithLiar]:
    swarm = SwarmWithLiar(
        str(demo.BASE_MODEL), num_blocks=4, dht_prefix="doubtful", spans=[(0, 4), (0, 2), (0, 4), (2, 4)], threads=1
    )
    swarm.other_weights = str(other_weights)
    with swarm:
        yield swarm


def connect(client: SwarmClient, swarm: PrivateSwarm, **options: Any) -> tuple[Classifier, SwarmRequests]:
    swarm.model = str(demo.BASE_MODEL)
    classifier = client.classifier_on_all(swarm, TunedCheckpoint.load(str(demo.CHECKPOINT)), **options)
    requests_of(classifier).router.servers.clear()  # or one that is a little slower might not be asked for minutes
    return classifier, requests_of(classifier)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(5, 30, (4, 50), generator=generator), torch.tensor([50, 20, 35, 50])


def local_logits(number: int) -> torch.Tensor:
    return load_locally(str(demo.BASE_MODEL), TunedCheckpoint.load(str(demo.CHECKPOINT))).logits(*batch(number))


def test_of_three_servers_the_faulty_one_is_found_named_and_excluded(
    swarm: SwarmWithLiar, swarm_client: SwarmClient
) -> None:
    classifier, requests = connect(swarm_client, swarm)
    excluded: list[str] = []
    audit, found, number = AuditedModel(classifier, excluded.append), [], 0
    while not excluded or number < 4:  # until it was asked
        record = RouteRecord()
        logits = audit.answer(*batch(number), AUDITED, record)["logits"]
        assert swarm.liar not in {peer for peer, *_ in record.route}
        assert [block for _, start, end, _ in record.route for block in range(start, end)] == [0, 1, 2, 3]
        assert torch.allclose(logits, local_logits(number), atol=1e-4)
        found.append(record.findings)
        number += 1
    audit = Findings.merged(found).summary(1.0)
    assert excluded == [swarm.liar]
    assert audit.batches == number
    assert swarm.liar not in {server.peer for server in audit.servers}
    assert all(server.agreed > 0 for server in audit.servers)
    assert audit.disputes == audit.unanswered == audit.alone == 0
    assert audit.largest_difference < 1e-4
    assert swarm.liar not in {str(span.peer) for span in requests.servers.spans()}


def test_a_batch_that_servers_take_in_halves_shows_the_faulty_one_too(
    swarm: SwarmWithLiar, swarm_client: SwarmClient
) -> None:
    classifier, requests = connect(swarm_client, swarm)
    ids = torch.randint(5, 30, (60, 50), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((60,), 50)
    truth = load_locally(str(demo.BASE_MODEL), TunedCheckpoint.load(str(demo.CHECKPOINT))).logits(ids, lengths)
    excluded: list[str] = []
    while not excluded:
        record = RouteRecord()
        logits = AuditedModel(classifier, excluded.append).answer(ids, lengths, AUDITED, record)["logits"]
        assert torch.allclose(logits, truth, atol=1e-4), (record, swarm.liar)
        assert (record.findings.batches, record.findings.disputes) == (1, [])
    assert excluded == [swarm.liar]
    assert requests.halved >= 1


def test_texts_that_are_longer_than_a_request_show_the_faulty_one_too(
    swarm: SwarmWithLiar, swarm_client: SwarmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, requests = connect(swarm_client, swarm, request_tokens=24)

    def refuse(segment: Span, hidden: torch.Tensor) -> Any:
        raise AssertionError(f"a request with texts of {hidden.shape[1]} tokens")

    monkeypatch.setattr(requests.transport, "send", refuse)
    excluded: list[str] = []
    while not excluded:
        record = RouteRecord()
        logits = AuditedModel(classifier, excluded.append).answer(*batch(0), AUDITED, record)["logits"]
        assert torch.allclose(logits, local_logits(0), atol=1e-4), (record, swarm.liar)
        assert (record.findings.batches, record.findings.disputes) == (1, [])
    assert excluded == [swarm.liar]


def test_where_only_the_halves_avoid_the_faulty_server_their_answers_count(
    swarm: SwarmWithLiar, swarm_client: SwarmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, requests = connect(swarm_client, swarm)
    ids = torch.randint(5, 30, (60, 50), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((60,), 50)
    truth = load_locally(str(demo.BASE_MODEL), TunedCheckpoint.load(str(demo.CHECKPOINT))).logits(ids, lengths)
    audit, banned = AuditedModel(classifier), []
    [liar] = {span.peer for span in requests.servers.spans() if str(span.peer) == swarm.liar}
    by_halves = audit._by_halves

    def without_the_liar(*batch: torch.Tensor) -> Any:
        monkeypatch.setattr(requests.router.stats(liar).ban, "_until", math.inf)
        banned.append(True)
        return by_halves(*batch)

    monkeypatch.setattr(audit, "_by_halves", without_the_liar)
    while len(banned) < 4:  # the wrong answer is that of the first route, or of the second
        monkeypatch.setattr(requests.router.stats(liar).ban, "_until", -math.inf)
        logits = audit.answer(ids, lengths, AUDITED, RouteRecord())["logits"]
        assert torch.allclose(logits, truth, atol=1e-4)


def test_a_run_with_a_liar_among_three_gives_the_honest_result(
    swarm: SwarmWithLiar, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    what = ["--checkpoint", str(demo.CHECKPOINT), "--dataset", str(demo.TEST_DATA), "--model", str(demo.BASE_MODEL)]
    what += ["--report", "none"]
    where = ["--initial-peers", *swarm.initial_peers, "--dht-prefix", "doubtful"]
    audited, honest = tmp_path / "audited", tmp_path / "honest"
    assert run_here("-m", "dist_eval", *what, *where, "--audit", "0.3", "--output", str(audited)) == 0
    assert run_here("-m", "dist_eval", *what, "--backend", "local", "--output", str(honest)) == 0
    assert (audited / "predictions.parquet").read_bytes() == (honest / "predictions.parquet").read_bytes()
    results = results_of(audited)
    assert [server["peer"] for server in results["audit"]["servers"] if server["odd"]] == [swarm.liar]
    assert results["audit"]["batches"] >= 0.3 * results["plan"]["batches"]
    assert results["audit"]["disputes"] == 0
    assert list((audited / "journal").glob(f"*{swarm.liar}.odd"))
    assert swarm.liar in capfd.readouterr().out


def test_with_two_servers_a_difference_is_a_dispute(swarm: SwarmWithLiar, swarm_client: SwarmClient) -> None:
    classifier, requests = connect(swarm_client, swarm)
    honest = swarm.peers[0]
    requests.servers.excluded |= {str(span.peer) for span in requests.servers.spans()} - {swarm.liar, honest}
    audit = AuditedModel(classifier)
    record = RouteRecord()
    audit.answer(*batch(0), AUDITED, record)
    found = record.findings.summary(1.0)
    assert (found.batches, found.disputes) == (1, 1)
    [dispute] = found.first_disputes
    assert {*dispute.peers} == {swarm.liar, honest}
    assert "no third server" in dispute.why
    assert 2 in range(*dispute.blocks), "the part with the other weights is named"

    requests.servers.excluded |= {swarm.liar}
    record = RouteRecord()
    audit.answer(*batch(0), AUDITED, record)
    assert record.findings == Findings(alone=1)


def test_a_lost_replica_costs_its_second_answer_and_no_time(swarm: SwarmWithLiar, swarm_client: SwarmClient) -> None:
    classifier, requests = connect(swarm_client, swarm)
    honest = swarm.peers[0]
    requests.servers.excluded |= {str(span.peer) for span in requests.servers.spans()} - {swarm.liar, honest}
    swarm.kill_server(LIAR)
    for number in range(3):
        record = RouteRecord()
        logits = AuditedModel(classifier).answer(*batch(number), AUDITED, record)["logits"]
        assert torch.allclose(logits, local_logits(number), atol=1e-4)
        assert {peer for peer, *_ in record.route} == {honest}
        assert record.findings in (Findings(unanswered=1), Findings(alone=1))
