"""The probe sends batches of all lengths, as many as are needed; its routes give the bytes that a run exchanges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import tokenized_digits

from dist_eval.data.answers import RouteSegment, logits_columns
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import plan_batches
from dist_eval.distributed.rank_store import Topology
from dist_eval.inference.in_flight import Window
from dist_eval.planning.probe import answers_wanted, expected_time, probe, spread_order
from dist_eval.swarm.routes import RouteRecord, SendOptions

CLASSES = 10


class Server:
    """One server that works on one batch at a time."""

    columns = logits_columns(CLASSES)
    retries = 0

    def __init__(self, seconds: float) -> None:
        self._seconds, self._free, self.batches = seconds, threading.Lock(), 0

    def answer(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, options: SendOptions, record: RouteRecord
    ) -> dict[str, torch.Tensor]:
        with self._free:
            time.sleep(self._seconds)
            self.batches += 1
        record.route.append(RouteSegment("server", 0, 4, "float32"))
        return {"logits": torch.zeros(len(lengths), CLASSES)}

    def exclude(self, servers: Iterable[str]) -> None:
        pass


def counting(others: int = 0) -> Callable[[int], int]:
    """Counts the answers of this rank, and of others that have some already."""
    total = [others]

    def count(answers: int) -> int:
        total[0] += answers
        return total[0]

    return count


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenizedDataset:
    return tokenized_digits(tmp_path_factory.mktemp("data"), 300, CLASSES)


def test_a_probe_ends_with_enough_answers_and_tells_the_time_of_all(data: TokenizedDataset) -> None:
    plan, server = plan_batches(data.lengths, token_budget=12), Server(0.01)
    enough = answers_wanted(len(plan), 1)
    assert len(plan) > 2 * enough
    found = probe(server, data, plan, Topology(), Window(4), count=counting(), longest=60.0)
    assert enough <= len(found.seconds) <= enough + 4
    assert found.stopped == pytest.approx(found.seconds[enough - 1], abs=0.1)
    assert expected_time([found], int(plan.tokens.sum())).seconds > len(plan) * 0.009, "servers never hurry"


def test_it_ends_when_the_ranks_together_have_enough(data: TokenizedDataset) -> None:
    plan = plan_batches(data.lengths, token_budget=12)
    others = answers_wanted(len(plan), 2) - 5
    world = Topology(world_size=2)
    found = probe(Server(0.01), data, plan, world, Window(1), count=counting(others), longest=60.0)
    assert 5 <= len(found.seconds) <= 6


def test_when_time_is_up_a_speed_is_known_all_the_same(data: TokenizedDataset) -> None:
    plan = plan_batches(data.lengths, token_budget=12)
    found = probe(Server(0.05), data, plan, Topology(), Window(1), count=counting(), longest=0.01)
    assert len(found.seconds) == 2
    assert found.stopped < np.inf


def test_a_plan_with_fewer_batches_is_sent_as_a_whole(data: TokenizedDataset) -> None:
    plan = plan_batches(data.lengths, token_budget=1024)
    world = Topology(rank=len(plan), world_size=len(plan) + 1)
    nothing = probe(Server(0.0), data, plan, world, Window(4), count=counting(), longest=60.0)
    everything = probe(Server(0.0), data, plan, Topology(), Window(4), count=counting(), longest=60.0)
    assert (len(nothing.seconds), nothing.stopped) == (0, np.inf)
    assert (sorted(everything.tokens), everything.stopped) == (sorted(plan.tokens), np.inf)


@given(st.integers(0, 3000), st.integers(1, 64))
def test_however_many_come_first_they_are_spread_over_all(count: int, first: int) -> None:
    order = list(spread_order(count))
    assert sorted(order) == list(range(count))
    if count > 0:
        begun = np.sort(order[:first])
        gaps = np.diff(begun, prepend=0, append=count)
        assert gaps.max() <= 4 * count / len(begun) + 1


@pytest.mark.parametrize(
    ("batches", "ranks", "answers"), [(10, 1, 24), (200, 3, 50), (10**6, 3, 96), (10**6, 100, 400), (10, 100, 400)]
)
def test_a_long_run_and_many_ranks_need_more_answers(batches: int, ranks: int, answers: int) -> None:
    assert answers_wanted(batches, ranks) == answers
