"""Texts in sessions give the outputs of forwards, and the sessions of a rank are used by turns."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import wait_for
from tiny_models import random_checkpoint

from dist_eval.data.plan import SharedPrefix
from dist_eval.errors import NoCacheError
from dist_eval.inference.models import SendOptions
from dist_eval.model import session_pool
from dist_eval.model.backbone import NO_PROMPTS, LocalBackbone, SoftPrompts, load_local_backbone
from dist_eval.model.classifier import Classifier
from dist_eval.model.session_pool import SessionPool
from dist_eval.model.text_session import RecomputedTextSession, TextSession
from dist_eval.petals.base_model.architecture import Architecture
from dist_eval.petals.client.routes import RouteRecord

TOKENS = 64


class CountedBackbone(LocalBackbone):
    """Notes the sessions that are opened."""

    opened: list[tuple[int, int]]

    def session(self, rows: int, max_length: int, *prompts: SoftPrompts, **options: Any) -> TextSession:
        self.opened.append((rows, max_length))
        return super().session(rows, max_length, *prompts, **options)


@pytest.fixture
def backbone(tiny_models: dict[str, Path]) -> CountedBackbone:
    base = load_local_backbone(str(tiny_models["llama"]))
    found = CountedBackbone(base.model, Architecture(base.config))
    found.opened = []
    return found


def texts(rows: int, own: int, seed: int, common: int = 10) -> torch.Tensor:
    prefix = torch.randint(0, 100, (1, common), generator=torch.Generator().manual_seed(1))
    ends = torch.randint(0, 100, (rows, own), generator=torch.Generator().manual_seed(seed))
    return torch.cat([prefix.expand(rows, -1), ends], dim=1)


def alike(tokens: int, rows: int = 2) -> SharedPrefix:
    """All texts begin with the same tokens."""
    return SharedPrefix(tokens, tokens, rows, TOKENS // rows)


def outputs_of(
    pool: SessionPool, ids: torch.Tensor, shared: SharedPrefix, prompts: SoftPrompts = NO_PROMPTS
) -> torch.Tensor:
    return pool.hidden_states(shared, ids, prompts, RouteRecord())


@pytest.mark.parametrize("mode", [None, "deep_ptune"])
def test_outputs_are_those_of_forwards_and_nothing_stands_for_the_beginning(
    backbone: CountedBackbone, mode: str | None
) -> None:
    tuned = random_checkpoint(mode)
    prompts = SoftPrompts(tuned.prompts, tuned.deep_prompts)
    pool = SessionPool(backbone.session, 1)
    shared = len(prompts) + 10
    for rows, own in ((3, 6), (1, 6), (7, 5)):  # the last one takes several steps
        ids = texts(rows, own, seed=own)
        with torch.no_grad():
            whole = backbone.hidden_states(ids, prompts)
        found = outputs_of(pool, ids, alike(shared, rows=2 if own == 6 else 3), prompts)
        assert found.shape == whole.shape
        assert torch.allclose(found[:, shared:], whole[:, shared:], atol=2e-5)
        assert found[:, :shared].isnan().all()
    lengths = [TOKENS // rows - len(prompts) for rows in (2, 3)]
    assert backbone.opened == [(2, lengths[0]), (3, lengths[1])], "batches of one shape share a session"


@pytest.mark.parametrize("common", [0, 4])
def test_contexts_are_sent_once_and_continued_in_turn(backbone: CountedBackbone, common: int) -> None:
    pool = SessionPool(backbone.session, 1)
    draw = torch.Generator().manual_seed(3)
    for ways in ((2, 2, 2), (3, 1, 2), (1, 2)):  # the sessions of three contexts follow each other
        prefix = torch.randint(0, 100, (1, common), generator=torch.Generator().manual_seed(1))
        contexts = torch.cat([prefix.expand(len(ways), -1), torch.randint(0, 100, (len(ways), 9))], dim=1)
        which = torch.tensor([context for context, count in enumerate(ways) for _ in range(count)])
        ids = torch.cat([contexts[which], torch.randint(0, 100, (len(which), 5), generator=draw)], dim=1)
        with torch.no_grad():
            whole = backbone.hidden_states(ids)
        found = outputs_of(pool, ids, SharedPrefix(common + 8, common, 3, TOKENS))
        assert torch.allclose(found[:, common + 8 :], whole[:, common + 8 :], atol=2e-5)
        assert found[:, : common + 8].isnan().all()
    assert backbone.opened == [(3, TOKENS)], "one session is used for one group after the other"


def test_threads_wait_for_a_session_and_other_beginnings_take_its_place(backbone: CountedBackbone) -> None:
    pool = SessionPool(backbone.session, 2)
    batches = [texts(2, 6, seed, common) for seed in range(6) for common in (9, 10, 11)]

    def predict(ids: torch.Tensor) -> torch.Tensor:
        return outputs_of(pool, ids, alike(ids.shape[1] - 6))

    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(predict, batches))
    assert len(pool._open) <= 2
    for ids, found in zip(batches, together, strict=True):
        assert torch.equal(found[:, -6:], predict(ids)[:, -6:])


def test_a_session_is_left_to_those_who_wait_for_its_beginnings(
    backbone: CountedBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "_THREADS", 1)
    pool, same, other = SessionPool(backbone.session, 1), texts(2, 6, seed=1), texts(2, 6, seed=2, common=11)
    wanted = session_pool._Prefixes(same[:1, :10].expand(2, -1), 10, TOKENS // 2)
    with ThreadPoolExecutor(2) as threads:
        with pool._session(wanted, NO_PROMPTS):
            later = [threads.submit(outputs_of, pool, other, alike(11))]
            assert wait_for(lambda: len(pool._waiting) == 1)
            later.append(threads.submit(outputs_of, pool, same, alike(10)))
            assert wait_for(lambda: len(pool._waiting) == 2)
        for one in later:
            one.result(timeout=30)
    assert len(backbone.opened) == 2


def test_a_session_is_shared_by_threads_for_each_of_its_servers_and_closed_once_none_uses_it(
    backbone: CountedBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "_THREADS", 1)
    monkeypatch.setattr(RecomputedTextSession, "servers", 2)
    closed: list[TextSession] = []
    monkeypatch.setattr(RecomputedTextSession, "close", lambda session: closed.append(session))
    pool, ids = SessionPool(backbone.session, 2), texts(2, 6, seed=1)
    wanted = session_pool._Prefixes(ids[:1, :10].expand(2, -1), 10, TOKENS // 2)
    with pool._session(wanted, NO_PROMPTS) as first:
        with pytest.raises(ZeroDivisionError), pool._session(wanted, NO_PROMPTS) as second:
            assert second is first
            with pool._session(wanted, NO_PROMPTS) as third:
                assert third is not first
            raise ZeroDivisionError
        assert not closed, "it is still used"
        with pool._session(wanted, NO_PROMPTS) as other:
            assert other is third, "nobody gets one that has failed"
    assert closed == [first]
    assert [one.users for one in pool._open] == [0]


def test_all_who_wait_for_a_session_hear_that_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Semaphore(0)

    def full(rows: int, max_length: int, prompts: SoftPrompts) -> TextSession:
        for _ in range(3):
            assert waiting.acquire(timeout=20)
        raise NoCacheError("the server is full")

    def predict(ids: torch.Tensor) -> str:
        try:
            outputs_of(pool, ids, alike(10))
        except NoCacheError as error:
            return str(error)
        return ""

    def waits(*args: object) -> bool:
        waiting.release()
        return wait(*args)

    pool = SessionPool(full, 1)
    wait = pool._changed.wait
    pool._full_since = time.monotonic() - 61  # as if they had waited already
    monkeypatch.setattr(pool._changed, "wait", waits)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(predict, texts(2, 6, seed)) for seed in range(4)]
        assert all(one.result(timeout=30) for one in found)


def test_a_batch_waits_for_room_because_a_plain_forward_would_have_other_bits(
    backbone: CountedBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, full = texts(2, 6, seed=1), [True] * 3

    def session(*options: Any) -> TextSession:
        if full and full.pop():
            raise NoCacheError("the server is full")
        return backbone.session(*options)

    pool = SessionPool(session, 2)
    monkeypatch.setattr(session_pool, "_BETWEEN_TRIES", 0.05)
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: outputs_of(pool, ids, alike(10)), range(3)))
    assert not full
    for one in found:
        assert torch.equal(one[:, 10:], found[0][:, 10:])


def test_without_room_a_batch_takes_a_plain_forward_and_says_so(
    backbone: CountedBackbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, ids = Classifier(backbone, random_checkpoint(None)), texts(3, 6, seed=1)
    lengths, options = torch.full((3,), 16), SendOptions(shared=alike(10))
    plain = classifier.logits(ids, lengths)
    for limit in (None, 0, 1):
        if limit is not None:
            pool = SessionPool(backbone.session, limit)
            monkeypatch.setattr(backbone, "hidden_states_after", pool.hidden_states)
        record = RouteRecord()
        found = classifier.logits(ids, lengths, options, record)
        assert record.fell_back is not bool(limit)
        assert torch.allclose(found, plain, atol=2e-5) if limit else torch.equal(found, plain)
    pool.close()
    with pytest.raises(NoCacheError):
        outputs_of(pool, ids, alike(10))
