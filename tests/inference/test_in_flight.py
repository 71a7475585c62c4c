"""The window of batches in flight, on simulated servers whose true capacity is known."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.inference.in_flight import FIRST_SIZE, LARGEST_SIZE, Window, largest_window


def simulate(
    window: Window, batches: int, *, travel: float, service: float, noise: float = 0.0, seed: int = 0
) -> tuple[float, list[int]]:
    """Sends batches to one server that processes one at a time.

    Returns:
        Seconds until the last answer, and the window's size after each answer.
    """
    generator = random.Random(seed)
    now, free_at, sizes = 0.0, 0.0, []
    under_way: list[tuple[float, float]] = []
    left = batches
    while left or under_way:
        while left and len(under_way) < window.size:
            factor = 1.0 + noise * generator.random()
            free_at = max(now + travel / 2, free_at) + service * factor
            heapq.heappush(under_way, (free_at + travel / 2, now))
            left -= 1
        now, sent = heapq.heappop(under_way)
        window.finished(now - sent, 0)
        sizes.append(window.size)
    return now, sizes


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("travel", [0.0, 0.02, 0.1, 0.4, 1.0])
def test_the_server_is_busy_nearly_all_the_time(travel: float, noise: float) -> None:
    batches, service = 300, 0.1
    seconds, _ = simulate(Window(), batches, travel=travel, service=service, noise=noise)
    busy = batches * service * (1.0 + noise / 2)
    assert busy / (seconds - travel) > 0.93


@pytest.mark.parametrize("travel", [0.0, 0.1, 0.4])
def test_it_grows_no_further_than_is_useful(travel: float) -> None:
    service = 0.1
    _, sizes = simulate(Window(), 300, travel=travel, service=service)
    assert max(sizes) <= max(FIRST_SIZE + 2, 1 + travel / service + 8)


def test_it_backs_off_when_a_server_becomes_slow() -> None:
    window = Window()
    simulate(window, 100, travel=1.0, service=0.1)
    before = window.size
    for _ in range(200):  # now each batch takes the server half a second, so all but a few wait
        window.finished(0.5 * window.size, 0)
    assert window.size < before * 0.7


def test_a_retry_halves_it_and_it_recovers() -> None:
    window = Window()
    simulate(window, 100, travel=1.0, service=0.1)
    before = window.size
    window.finished(1.1, 1)
    assert window.size == before // 2
    window.finished(1.1, 1)
    assert window.size == before // 2, "the same retry counts once"
    for _ in range(400):
        window.finished(1.1, 1)
    assert window.size >= before


def test_it_keeps_latency_below_the_timeout() -> None:
    window = Window(timeout=20.0)  # 5 s are a quarter of it
    # a server so far away that many more would be of use
    simulate(window, 300, travel=4.9, service=0.4)
    assert window.size * 0.4 < 10.0


def test_latency_above_a_quarter_of_the_timeout_shrinks_it_to_one() -> None:
    window = Window(timeout=20.0)
    for _ in range(50):
        window.finished(19.0, 0)
    assert window.size == 1


@given(
    st.lists(st.tuples(st.floats(0.0, 1e4), st.integers(0, 3)), max_size=300),
    st.integers(1, 100),
    st.floats(0.1, 600.0),
)
def test_it_stays_within_its_limits(answers: list[tuple[float, int]], largest: int, timeout: float) -> None:
    window = Window(largest=largest, timeout=timeout)
    for seconds, retries in zip(
        (seconds for seconds, _ in answers), itertools.accumulate(retries for _, retries in answers), strict=True
    ):
        window.finished(seconds, retries)
        assert 1 <= window.size <= largest


@given(st.lists(st.tuples(st.floats(0.0, 1e4), st.integers(0, 9)), max_size=50), st.integers(1, 100))
def test_a_fixed_size_never_changes(answers: list[tuple[float, int]], fixed: int) -> None:
    window = Window(fixed, largest=3, timeout=1.0)
    for seconds, retries in answers:
        window.finished(seconds, retries)
    assert window.size == window.largest == fixed


def test_memory_limits_it() -> None:
    batch = 1024 * 14336 * 4
    assert largest_window(1024, 14336, 0) == 1
    assert largest_window(1024, 14336, 4 * 6 * batch * 5) == 5
    assert largest_window(1024, 256, 8 * 2**30) == LARGEST_SIZE
    assert Window(largest=2).size == 2 < FIRST_SIZE
