"""The probe sends batches of all lengths, as many as are needed; the time of the run is in the range it gives."""

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

from dist_eval.data.answers import logits_columns
from dist_eval.data.dataset import TokenizedDataset
from dist_eval.data.plan import plan_batches
from dist_eval.distributed.rank_store import Topology
from dist_eval.inference.in_flight import Window
from dist_eval.inference.models import SendOptions
from dist_eval.petals.client.records import RouteSegment
from dist_eval.petals.client.routes import RouteRecord
from dist_eval.planning.probe import Probed, answers_wanted, expected_time, probe, spread_order
from dist_eval.planning.record import TimeEstimate

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

    def stop_sending(self) -> None:
        pass

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


def answers(seconds: list[float] | np.ndarray, tokens: list[int] | np.ndarray, stopped: float = np.inf) -> Probed:
    return Probed(np.asarray(seconds, dtype=np.float64), np.asarray(tokens, dtype=np.int64), stopped)


@given(
    sizes=st.lists(st.integers(1, 1024), min_size=2, max_size=120),
    per_token=st.floats(1e-5, 10),
    passage=st.floats(0, 100),
    ranks=st.integers(1, 5),
    more=st.integers(0, 10**9),
)
def test_at_a_steady_speed_it_is_exact_whatever_the_start_took(
    sizes: list[int], per_token: float, passage: float, ranks: int, more: int
) -> None:
    moments = passage + per_token * np.cumsum(sizes)
    dealt = [answers(moments[rank::ranks], sizes[rank::ranks]) for rank in range(ranks)]
    found = expected_time(dealt, sum(sizes) + more)
    assert found.seconds == pytest.approx(passage + per_token * (sum(sizes) + more))
    assert found.tokens_per_second == pytest.approx(1 / per_token)
    assert found.first_answer == pytest.approx(moments[0])
    assert found.probe_batches == len(sizes)
    if found.low is not None and found.high is not None:
        assert found.low <= found.seconds * (1 + 1e-9) and found.seconds <= found.high
        assert found.high - found.low == pytest.approx(found.first_answer, rel=1e-3, abs=1e-3 * found.seconds)


def simulate(generator: np.random.Generator, batches: int) -> tuple[TimeEstimate, float]:
    """A probe of a run whose batches take times that vary, and those of a moment are alike; and what all take."""
    sizes = generator.integers(600, 1025, size=batches)
    noise = np.repeat(generator.gamma(4.0, 0.25, size=batches // 2 + 1), 2)[:batches]
    moments = 3.0 + np.cumsum(1e-3 * sizes * noise)
    probe = slice(0, 96)
    return expected_time([answers(moments[probe], sizes[probe])], int(sizes.sum())), float(moments[-1])


def test_the_range_contains_what_comes_in_most_cases() -> None:
    generator, runs = np.random.default_rng(5), 400
    found = [simulate(generator, 5000) for _ in range(runs)]
    inside = sum(bool(one.low is not None and one.high and one.low <= came <= one.high) for one, came in found)
    assert 0.90 <= inside / runs <= 0.99
    errors = [abs(one.seconds / came - 1) for one, came in found]
    assert np.median(errors) < 0.08


def test_what_comes_after_a_rank_has_stopped_does_not_count() -> None:
    steady = [
        answers(np.arange(1, 41) * 0.2, [100] * 40, stopped=8.0),
        answers(np.arange(1, 41) * 0.2, [100] * 40, 8.0),
    ]
    faster = answers([*np.arange(1, 41) * 0.2, *(8.0 + np.arange(1, 41) * 0.1)], [100] * 80, stopped=12.0)
    assert expected_time([steady[0], faster], 10**6) == expected_time(steady, 10**6)
    assert expected_time(steady, 10**6).seconds == pytest.approx(1000)


@pytest.mark.parametrize("count", [1, 2, 5, 22])
def test_few_answers_give_an_estimate_without_a_range(count: int) -> None:
    found = expected_time([answers(np.arange(1, count + 1), [10] * count), answers([], [])], 100)
    assert found.seconds == pytest.approx(10)
    assert (found.low, found.high) == (None, None)


def test_answers_that_come_all_at_once_give_the_speed_until_then() -> None:
    assert expected_time([answers([2.0] * 4, [10] * 4)], 400).seconds == pytest.approx(20)
