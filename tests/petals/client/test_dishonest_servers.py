"""Real servers that lie: no run ends on the word of one, no honest server pays for it, and every answer is right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import dishonest_server
import pytest
import torch
from conftest import ForkedSwarm, SwarmClient, requests_of
from dishonest_server import (
    ANOTHERS,
    CLOSING,
    LATE,
    NOT_FINITE,
    NOT_FINITE_ONCE_CAST,
    REVERSED,
    SILENT,
    TOO_LARGE,
    WRONG_SHAPE,
)
from tiny_models import LAYERS, random_checkpoint

from dist_eval.errors import RefusedError
from dist_eval.evaluation.audit import AuditedModel, AuditedTexts
from dist_eval.inference.models import SendOptions
from dist_eval.model.backbone import load_local_backbone
from dist_eval.model.classifier import Classifier, load_locally
from dist_eval.model.generation import Generator
from dist_eval.model.language_model import LanguageModel
from dist_eval.model.output_embedding import OutputEmbedding
from dist_eval.petals.base_model.config import read_base_config
from dist_eval.petals.client.failures import Failure
from dist_eval.petals.client.gradients import through_swarm
from dist_eval.petals.client.requests import SwarmRequests
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.petals.model.checkpoint import TunedCheckpoint
from dist_eval.results.inputs import Decoding

AUDITED = SendOptions(audited=True)

LIARS = 2
"""Servers with all blocks, which look like the better route; four honest ones with a half each can do without them."""


class SwarmWithLiars(ForkedSwarm):
    """A swarm of which some servers lie as they are told."""

    def tell(self, lie: str, liars: int = LIARS) -> None:
        for number in range(LIARS):
            (self.folder / f"lie-{number}").write_text(lie if number < liars else "")

    @property
    def liars(self) -> list[str]:
        return self.peers[:LIARS]


@pytest.fixture(scope="module")
def swarm(tiny_models: dict[str, Path], swarm_client: SwarmClient) -> Iterator[SwarmWithLiars]:
    swarm = SwarmWithLiars(
        str(tiny_models["llama"]),
        num_blocks=LAYERS,
        dht_prefix="liars",
        spans=[(0, 4)] * LIARS + [(0, 2)] * 3 + [(2, 4)],
        threads=1,
        programs=dict.fromkeys(range(LIARS), dishonest_server.__file__),
    )
    with swarm_client.visiting(swarm):
        swarm_client.classifier_on_all(swarm, random_checkpoint("deep_ptune"))  # the first contact may take long
        yield swarm


@pytest.fixture
def connect(
    swarm: SwarmWithLiars, swarm_client: SwarmClient, make_tuned: Callable[..., TunedCheckpoint]
) -> Callable[..., Classifier]:
    """Returns a function that connects to the swarm, of whose servers nothing is known, and then has the liars lie."""

    def connect(lie: str, liars: int = LIARS) -> Classifier:
        swarm.tell("")
        options = {"request_timeout": 10.0, "max_retries": LIARS - 1}
        classifier = swarm_client.classifier(swarm, make_tuned("deep_ptune"), **options)
        for span in requests_of(classifier).servers.spans():
            if str(span.peer) not in swarm.liars:  # so that the liars are asked first
                requests_of(classifier).router.stats(span.peer).pacing.add_steps(10**9)
        swarm.tell(lie, liars)
        return classifier

    return connect


def is_banned(requests: SwarmRequests, peer: object) -> bool:
    return requests.router.stats(peer).is_banned(time.monotonic())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 100, (4, 9), generator=torch.Generator().manual_seed(0)), torch.full((4,), 9)


@pytest.fixture(scope="module")
def truth(tiny_models: dict[str, Path]) -> torch.Tensor:
    """The logits of a local model."""
    return load_locally(str(tiny_models["llama"]), random_checkpoint("deep_ptune")).logits(*batch())


@pytest.mark.slow
def test_answers_that_are_not_finite_once_cast_count_against_those_who_gave_them(
    swarm: SwarmWithLiars, connect: Callable[..., Classifier], truth: torch.Tensor
) -> None:
    classifier = connect(NOT_FINITE_ONCE_CAST, liars=1)
    backbone, requests, (ids, lengths) = classifier.backbone, requests_of(classifier), batch()
    requests.servers.excluded = {swarm.liars[1]}

    def only_the_liar_gave_wrong_answers() -> bool:
        accused = [peer for peer, server in requests.router.servers.items() if server.wrong_answers]
        assert accused == [peer for peer in requests.router.servers if is_banned(requests, peer)]
        requests.router.stats(accused[0]).retract(Failure.WRONG)  # it is asked again
        return [str(peer) for peer in accused] == swarm.liars[:1]

    assert torch.allclose(classifier.logits(ids, lengths), truth, atol=1e-4)
    assert only_the_liar_gave_wrong_answers()

    hidden = backbone.embedded(ids, None).detach().requires_grad_()
    [gradient] = torch.autograd.grad(through_swarm(requests, [hidden], None)[0].sum(), hidden)
    assert only_the_liar_gave_wrong_answers()

    with closing(backbone.session(*ids.shape)) as session, torch.no_grad():
        outputs = session.step(ids)
    assert only_the_liar_gave_wrong_answers()

    swarm.tell("")
    [honest] = through_swarm(requests, [hidden], None)
    assert torch.allclose(outputs, honest, atol=1e-4)
    assert torch.allclose(gradient, torch.autograd.grad(honest.sum(), hidden)[0], atol=1e-4)


def test_a_request_that_some_refuse_as_too_large_is_taken_whole_by_others(
    swarm: SwarmWithLiars, connect: Callable[..., Classifier], truth: torch.Tensor
) -> None:
    classifier = connect(TOO_LARGE)
    requests = requests_of(classifier)
    assert torch.allclose(classifier.logits(*batch()), truth, atol=1e-4)
    assert (requests.halved, requests.router.retries) == (0, 0)
    refusing = {str(peer) for peer, server in requests.router.servers.items() if server.limit < math.inf}
    assert refusing == {*swarm.liars}, "they are not asked for as much again"
    requests.servers.excluded = {str(span.peer) for span in requests.servers.spans()} - refusing
    with pytest.raises(
        RefusedError, match=r"a text of 14 tokens.* more than the servers accept \(peer \w+: "
    ) as caught:
        classifier.logits(*batch())
    assert caught.value.transient, "Petals' servers take as much by default: another one may be there later"


@pytest.mark.slow
def test_silent_servers_that_announce_a_high_speed_do_not_get_all_attempts(
    swarm: SwarmWithLiars, connect: Callable[..., Classifier], truth: torch.Tensor
) -> None:
    classifier = connect(SILENT)
    requests = requests_of(classifier)
    requests.servers.excluded = {*swarm.liars}
    classifier.logits(*batch())  # the others are measured now
    requests.servers.excluded = set()
    assert torch.allclose(classifier.logits(*batch()), truth, atol=1e-4)
    assert requests.router.retries


def test_two_servers_that_agree_on_a_lie_do_not_outvote_three_honest_ones(
    swarm: SwarmWithLiars, connect: Callable[..., Classifier], truth: torch.Tensor
) -> None:
    classifier = connect(REVERSED)
    requests, excluded = requests_of(classifier), list[str]()
    [accomplice] = {span.peer for span in requests.servers.spans() if str(span.peer) == swarm.liars[1]}
    requests.router.stats(accomplice).failed(time.monotonic(), Failure.WRONG)  # not asked, but for an opinion
    record = RouteRecord()
    logits = AuditedModel(classifier, excluded.append).answer(*batch(), AUDITED, record)["logits"]
    assert excluded[:1] == swarm.liars[:1]
    assert {*excluded} <= {*swarm.liars}, record
    assert torch.allclose(logits, truth, atol=1e-4)


@pytest.mark.parametrize("lie", [WRONG_SHAPE, NOT_FINITE, CLOSING])
def test_a_session_goes_on_elsewhere_when_a_server_answers_what_cannot_be_right(
    lie: str, swarm: SwarmWithLiars, connect: Callable[..., Classifier], tiny_models: dict[str, Path]
) -> None:
    classifier = connect(lie, liars=1)
    requests, (ids, _) = requests_of(classifier), batch()
    requests.servers.excluded = {swarm.liars[1]}
    with closing(classifier.backbone.session(*ids.shape)) as session, torch.no_grad():
        outputs = torch.cat([session.step(part) for part in ids.split([4, 1, 1, 1, 1, 1], dim=1)], dim=1)
    with torch.no_grad():
        expected = load_local_backbone(str(tiny_models["llama"])).hidden_states(ids)
    assert torch.allclose(outputs, expected, atol=1e-4)
    wrong = {str(peer) for peer, server in requests.router.servers.items() if server.wrong_answers}
    assert wrong == ({*swarm.liars[:1]} if lie != CLOSING else set())
    assert requests.router.retries


class Ids:
    """A tokenizer that is not asked for any text."""

    eos_token_id = 2

    def decode(self, tokens: list[int], **_: object) -> str:
        return " ".join(map(str, tokens))


@pytest.mark.parametrize("lie", [LATE, pytest.param(ANOTHERS, marks=pytest.mark.slow)])
def test_an_audit_finds_who_lies_about_generated_texts(
    lie: str, swarm: SwarmWithLiars, connect: Callable[..., Classifier], tiny_models: dict[str, Path]
) -> None:
    model, lengths = str(tiny_models["llama"]), torch.tensor([[5 + row, 0, row] for row in range(4)])
    output = OutputEmbedding(model, read_base_config(model))

    def generator(backbone: object) -> Generator:
        language_model = LanguageModel(backbone, output)  # type: ignore[arg-type]
        return Generator(language_model, [Decoding(max_new_tokens=6)], Ids(), (2,))

    truth = generator(load_local_backbone(model)).answer(batch()[0], lengths)["tokens"]
    backbone, excluded = connect(lie, liars=1).backbone, list[str]()
    backbone.requests.servers.excluded = {swarm.liars[1]}  # type: ignore[attr-defined]
    texts = generator(backbone)
    with closing(backbone.session(4, 2)) as session:  # what it says to others, if it is asked
        session.step(torch.tensor([[7], [8], [9], [10]]))
    assert not torch.equal(texts.answer(batch()[0], lengths)["tokens"], truth), "it lies, and is believed"
    record = RouteRecord()
    found = AuditedTexts(texts, excluded.append).answer(batch()[0], lengths, AUDITED, record)
    assert excluded == swarm.liars[:1], record.findings
    assert torch.equal(found["tokens"], truth)
    assert swarm.liars[0] not in {peer for peer, *_ in record.route}
