"""Texts that begin alike share their beginning; where that saves nothing, the plan stays as it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.data import shared_prefixes
from dist_eval.data.plan import BatchPlan, plan_batches
from dist_eval.data.prefix_costs import rows_in_cache
from dist_eval.data.shared_prefixes import CommonTokens, Prefixes, plan_with_shared_prefixes

CACHE, BUDGET = 1024, 1024


def some_texts(prefix: int, rows: int, seed: int = 0, shortest: int = 15, longest: int = 35) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    common = draw.integers(0, 90, prefix)
    own = [draw.integers(0, 90, length) for length in draw.integers(shortest, longest + 1, rows)]
    return [np.concatenate([common, text]).astype(np.int32) for text in own]


def plan_of(texts: list[np.ndarray], cut: frozenset[int] = frozenset(), cache_tokens: int = CACHE) -> BatchPlan:
    finder = CommonTokens()
    common = np.array([-1 if row in cut else finder.add(text) for row, text in enumerate(texts)], dtype=np.int32)
    lengths = np.array([len(text) for text in texts])
    prefixes = Prefixes(common, lengths - 1, lambda row, size: texts[row][:size])
    return plan_with_shared_prefixes(lengths, token_budget=BUDGET, cache_tokens=cache_tokens, prefixes=prefixes)


def shared_of(plan: BatchPlan, number: int) -> int:
    shape = plan.shared_by(number)
    return shape.tokens if shape else 0


def plain(texts: list[np.ndarray]) -> BatchPlan:
    return plan_batches(np.array([len(text) for text in texts]), token_budget=BUDGET)


@pytest.mark.parametrize(
    ("prefix", "rows", "worth"), [(0, 500, False), (64, 500, True), (300, 20, True), (300, 1, False)]
)
def test_a_common_beginning_is_sent_once_where_that_is_cheaper(prefix: int, rows: int, worth: bool) -> None:
    texts = some_texts(prefix, rows)
    plan = plan_of(texts)
    assert (plan.shared is not None) is worth
    if worth:
        assert {shared_of(plan, number) for number in range(len(plan))} == {prefix}
        assert plan.real_tokens.sum() == plain(texts).real_tokens.sum() - prefix * rows
        assert plan.sessions(0).rows == rows  # type: ignore[union-attr]


def test_without_sharing_the_plan_is_the_one_it_always_was() -> None:
    texts = some_texts(300, 50)
    assert plan_of(texts, cache_tokens=0).digest() == plain(texts).digest()
    assert plan_of(some_texts(0, 50)).digest() == plain(some_texts(0, 50)).digest()
    assert plan_of(texts).digest() != plain(texts).digest()
    assert plan_of(texts, cache_tokens=2048).digest() != plan_of(texts).digest()


def test_texts_that_were_cut_or_begin_otherwise_do_not_part_the_others() -> None:
    cut = some_texts(0, 2, seed=9)
    texts = [
        *some_texts(300, 40),
        cut[0],
        *some_texts(300, 40),
        *some_texts(0, 30, seed=5),
        cut[1],
        *some_texts(300, 40),
    ]
    plan = plan_of(texts, frozenset({40, 111}))
    shared = np.repeat([shared_of(plan, number) for number in range(len(plan))], plan.sizes)
    assert sorted(plan.order[shared == 0].tolist()) == [40, *range(81, 112)]
    assert set(shared.tolist()) == {0, 300}


def test_several_beginnings_have_batches_of_their_own() -> None:
    texts = [text for subject in range(4) for text in some_texts(200, 30, seed=subject)]
    plan = plan_of(texts)
    for number in range(len(plan)):
        assert len({row // 30 for row in plan.batch(number).tolist()}) == 1
        assert plan.sizes[number] <= rows_in_cache(200 + 35, CACHE) + 1


@pytest.mark.parametrize(("length", "worth"), [(25, True), (1000, False), (2100, False)])
def test_prompts_are_a_beginning_that_all_texts_have(length: int, worth: bool) -> None:
    options = {"token_budget": BUDGET, "extra_tokens": 16, "prompt_tokens": 16}
    plan = plan_with_shared_prefixes(np.full(500, length), cache_tokens=CACHE, **options)
    assert (plan.shared is not None) is worth
    if worth:
        assert {shared_of(plan, number) for number in range(len(plan))} == {16}
    ragged = np.random.default_rng(0).integers(15, 36, 2000)
    plan = plan_with_shared_prefixes(ragged, cache_tokens=CACHE, **options)
    assert plan.shared is not None and len({tuple(shape) for shape in plan.shared.shapes.tolist()}) == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 1), min_size=1, max_size=12)), min_size=1, max_size=60
    ),
    st.integers(0, 60),
    st.sampled_from([64, 256, 1024]),
    st.sampled_from([5, 9, 2000]),
)
def test_every_text_is_in_one_batch_and_shares_what_the_batch_says(
    ends: list[tuple[int, list[int]]], prefix: int, cache_tokens: int, longest: int
) -> None:
    # neighbours often begin alike, with one of three prefixes; texts that are too long for caches stand between
    ends = sorted(ends, key=lambda end: end[0])
    texts = [np.array([*range(subject, subject + prefix), *end], dtype=np.int32) for subject, end in ends]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_prefixes, "_LONGEST", prefix + longest)
        plan = plan_of(texts, cache_tokens=cache_tokens)
    assert sorted(plan.order.tolist()) == list(range(len(texts)))
    assert plan.starts[0] == 0 and plan.starts[-1] == len(texts)
    for number in range(len(plan)):
        rows, shared = plan.batch(number), shared_of(plan, number)
        assert len({texts[row][:shared].tobytes() for row in rows}) == 1
        assert all(len(texts[row]) > shared for row in rows)
        width = max(len(texts[row]) for row in rows)
        if shared:
            shape = plan.shared_by(number)
            assert shape is not None and shape.common == shared and width <= shape.length
            assert len(rows) <= shape.rows <= rows_in_cache(shape.length, cache_tokens)
            assert plan.tokens[number] == len(rows) * (width - shared)
