"""Plans for contexts that are continued in several ways each: they are sent once where that is cheaper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.data.plan import BatchPlan, plan_batches
from dist_eval.data.prefix_costs import rows_in_cache
from dist_eval.data.shared_prefixes import CommonTokens, Prefixes, plan_with_shared_prefixes

CACHE, BUDGET = 1024, 1024


def plan_of(texts: list[np.ndarray], contexts: list[int], copies: int = 1) -> BatchPlan:
    """Plans texts, each of which goes on after so many tokens of context."""
    finder = CommonTokens()
    common = np.array([finder.add(text) for text in texts], dtype=np.int32)
    lengths = np.array([len(text) for text in texts])
    prefixes = Prefixes(common, np.array(contexts) - 1, lambda row, size: texts[row][:size])
    return plan_with_shared_prefixes(lengths, token_budget=BUDGET, cache_tokens=CACHE, prefixes=prefixes, copies=copies)


def questions(
    sizes: list[int], ways: int, prefix: int = 0, longest: int = 30
) -> tuple[list[np.ndarray], list[int], list[int]]:
    """Returns texts, the tokens of their contexts, and the numbers of these."""
    draw = np.random.default_rng(0)
    common = draw.integers(0, 90, prefix)
    texts, contexts, which = [], [], []
    for number, size in enumerate(sizes):
        context = np.concatenate([common, [100 + number], draw.integers(0, 90, size)])
        for _ in range(ways):
            answer = draw.integers(0, 90, draw.integers(5, longest + 1))
            texts.append(np.concatenate([context, answer]).astype(np.int32))
            contexts.append(len(context))
            which.append(number)
    return texts, contexts, which


@pytest.mark.parametrize(
    ("size", "ways", "prefix", "worth"),
    [(80, 4, 0, True), (80, 4, 300, True), (4, 4, 0, False), (80, 1, 0, False), (700, 4, 0, True)],
)
def test_contexts_are_sent_once_where_that_is_cheaper(size: int, ways: int, prefix: int, worth: bool) -> None:
    texts, contexts, _ = questions([size] * 40, ways, prefix)
    plan = plan_of(texts, contexts)
    shapes = [plan.shared_by(number) for number in range(len(plan))]
    held = {(shape.tokens, shape.common) if shape else None for shape in shapes}
    assert held == ({(prefix + size, prefix)} if worth else {None})
    if worth:
        plain = plan_batches(np.array([len(text) for text in texts]), token_budget=BUDGET)
        saved = 40 * (ways - 1) * size + 40 * ways * prefix
        assert plan.real_tokens.sum() == plain.real_tokens.sum() - saved
        assert plan.gain > 1.8


def test_prompts_before_several_words_are_sent_once() -> None:
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, 90, size).astype(np.int32) for size in draw.integers(90, 120, 50)]
    plan = plan_of(prompts, [len(prompt) for prompt in prompts], copies=3)
    shapes = [plan.shared_by(number) for number in range(len(plan))]
    assert all(shape is not None and shape.tokens > 80 and shape.common == 0 for shape in shapes)
    assert plan.gain > 1.8


@given(
    st.lists(st.tuples(st.integers(2, 400), st.integers(1, 6)), min_size=1, max_size=30),
    st.sampled_from([0, 0, 50, 300]),
    st.sampled_from([5, 60]),
)
def test_every_text_is_in_one_batch_with_those_of_its_context(
    sizes: list[tuple[int, int]], prefix: int, longest: int
) -> None:
    texts, contexts, which = [], [], []
    for number, (size, ways) in enumerate(sizes):
        own = questions([size], ways, prefix, longest)
        texts += [np.where(text == 100, 100 + number, text) for text in own[0]]
        contexts += own[1]
        which += [number] * ways
    plan = plan_of(texts, contexts)
    assert sorted(plan.order.tolist()) == list(range(len(texts)))
    own = 0
    for number in range(len(plan)):
        rows, shape = plan.batch(number), plan.shared_by(number)
        shared, common, _, _ = shape or (0, 0, 0, 0)
        assert len({texts[row][:common].tobytes() for row in rows}) == 1
        assert all(shared < contexts[row] for row in rows)
        if shape is not None and common < shared:
            here = [which[row] for row in rows]
            assert len(set(map(here.count, here))) == 1, "equally many of each"
            assert all(len({texts[row][:shared].tobytes() for row in rows if which[row] == one}) == 1 for one in here)
            width = max(len(texts[row]) for row in rows)
            assert width <= shape.length and len(set(here)) <= shape.rows <= rows_in_cache(shape.length, CACHE)
            ways = here.count(here[0])
            assert plan.tokens[number] == shape.rows * (shared - common + ways * (width - shared))
            assert len(rows) * width <= max(4096, ways * width)
        own += int(plan.real_tokens[number])
    assert own <= sum(map(len, texts))
