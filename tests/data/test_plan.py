"""The plan: every example in exactly one batch, every batch on exactly one rank, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_eval.data.plan import BatchPlan, SharedPrefixes, plan_batches, shard_batches

text_lengths = st.lists(st.integers(1, 60), max_size=80).map(lambda lengths: np.asarray(lengths, dtype=np.int32))
budgets = st.integers(1, 300)
prefixes = st.integers(0, 20)
world_sizes = st.integers(1, 9)
quickly = settings(max_examples=100)


def batches_of(plan: BatchPlan) -> list[np.ndarray]:
    return [plan.batch(number) for number in range(len(plan))]


def shards_of(plan: BatchPlan, world_size: int) -> list[np.ndarray]:
    return [shard_batches(len(plan), rank=rank, world_size=world_size) for rank in range(world_size)]


@quickly
@given(text_lengths, budgets, prefixes)
def test_every_example_stands_in_exactly_one_batch(lengths: np.ndarray, budget: int, prefix: int) -> None:
    plan = plan_batches(lengths, token_budget=budget, extra_tokens=prefix)
    rows = [row for batch in batches_of(plan) for row in batch]
    assert sorted(rows) == list(range(len(lengths)))


@quickly
@given(text_lengths, budgets, prefixes)
def test_only_a_long_example_of_its_own_exceeds_the_budget(lengths: np.ndarray, budget: int, prefix: int) -> None:
    for batch in batches_of(plan_batches(lengths, token_budget=budget, extra_tokens=prefix)):
        padded = len(batch) * (prefix + lengths[batch].max())
        assert len(batch) == 1 or 0 < padded <= budget


@quickly
@given(text_lengths, budgets, prefixes)
def test_a_batch_is_closed_only_when_the_next_example_does_not_fit(
    lengths: np.ndarray, budget: int, prefix: int
) -> None:
    batches = batches_of(plan_batches(lengths, token_budget=budget, extra_tokens=prefix))
    for batch in batches[:-1]:
        assert (len(batch) + 1) * (prefix + lengths[batch].max()) > budget


@quickly
@given(text_lengths, budgets, prefixes)
def test_longest_first_and_equal_lengths_in_dataset_order(lengths: np.ndarray, budget: int, prefix: int) -> None:
    plan = plan_batches(lengths, token_budget=budget, extra_tokens=prefix)
    rows = [int(row) for batch in batches_of(plan) for row in batch]
    assert rows == sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


@quickly
@given(text_lengths, budgets, prefixes)
def test_tokens_are_counted_with_padding_and_prompts(lengths: np.ndarray, budget: int, prefix: int) -> None:
    plan = plan_batches(lengths, token_budget=budget, extra_tokens=prefix)
    padded = [int(len(batch) * (prefix + lengths[batch].max())) for batch in batches_of(plan)]
    real = [int((lengths[batch] + prefix).sum()) for batch in batches_of(plan)]
    assert plan.tokens.tolist() == padded
    assert plan.real_tokens.tolist() == real
    assert plan.tokens.dtype == plan.real_tokens.dtype == np.int64
    summary = plan.summary()
    assert summary.batches == len(padded)
    assert summary.padded_tokens == sum(padded)
    assert summary.real_tokens == sum(int(length) + prefix for length in lengths)
    assert all(type(getattr(summary, name)) is int for name in ("batches", "padded_tokens", "real_tokens"))


@quickly
@given(text_lengths, budgets, prefixes, world_sizes)
def test_the_tokens_of_all_ranks_add_up_to_the_plans(
    lengths: np.ndarray, budget: int, prefix: int, world_size: int
) -> None:
    plan = plan_batches(lengths, token_budget=budget, extra_tokens=prefix)
    shards = shards_of(plan, world_size)
    assert sum(int(plan.real_tokens[shard].sum()) for shard in shards) == plan.summary().real_tokens
    assert sum(int(plan.tokens[shard].sum()) for shard in shards) == plan.summary().padded_tokens


@quickly
@given(text_lengths, budgets, world_sizes)
def test_shards_partition_the_plan_for_any_number_of_ranks(lengths: np.ndarray, budget: int, world_size: int) -> None:
    plan = plan_batches(lengths, token_budget=budget)
    dealt = np.concatenate(shards_of(plan, world_size))
    assert sorted(dealt) == list(range(len(plan)))


@quickly
@given(text_lengths, budgets, world_sizes)
def test_shards_differ_by_at_most_one_batch_and_keep_the_order(
    lengths: np.ndarray, budget: int, world_size: int
) -> None:
    plan = plan_batches(lengths, token_budget=budget)
    shards = shards_of(plan, world_size)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    assert all((np.diff(shard) > 0).all() for shard in shards)


@quickly
@given(text_lengths, budgets, prefixes, world_sizes)
def test_the_batches_that_are_sent_do_not_depend_on_the_number_of_ranks(
    lengths: np.ndarray, budget: int, prefix: int, world_size: int
) -> None:
    plan = plan_batches(lengths, token_budget=budget, extra_tokens=prefix)
    sent = {tuple(plan.batch(number).tolist()) for shard in shards_of(plan, world_size) for number in shard}
    alone = {tuple(plan.batch(number).tolist()) for number in shard_batches(len(plan), rank=0, world_size=1)}
    assert sent == alone
    assert len(alone) == len(plan)


@pytest.mark.parametrize("batches", [0, 1, 3, 4, 5, 100])
def test_four_ranks_share_few_and_many_batches(batches: int) -> None:
    plan = plan_batches(np.full(batches, 10), token_budget=10)
    shards = shards_of(plan, 4)
    assert [len(shard) for shard in shards] == [len(range(rank, batches, 4)) for rank in range(4)]
    assert all(shard.dtype == np.int64 for shard in shards)


def test_no_examples_make_an_empty_plan() -> None:
    plan = plan_batches(np.empty(0, dtype=np.int32), token_budget=100, extra_tokens=3)
    assert len(plan) == 0
    assert plan.summary().padded_tokens == plan.summary().real_tokens == 0
    assert plan.real_tokens.tolist() == plan.tokens.tolist() == []
    assert shard_batches(len(plan), rank=1, world_size=2).tolist() == []


def test_prompts_take_their_part_of_the_budget() -> None:
    lengths = np.full(12, 10)
    assert len(plan_batches(lengths, token_budget=120).batch(0)) == 12
    assert len(plan_batches(lengths, token_budget=120, extra_tokens=20).batch(0)) == 4


def test_lengths_of_a_narrow_dtype_do_not_overflow() -> None:
    plan = plan_batches(np.full(4000, 120, dtype=np.int8), token_budget=1_000_000)
    assert plan.tokens.tolist() == plan.real_tokens.tolist() == [480_000]


def test_equal_plans_and_only_they_have_equal_digests() -> None:
    lengths = np.array([5, 3, 9, 9, 1])
    plans = {
        "plan": plan_batches(lengths, token_budget=18, extra_tokens=1),
        "lengths": plan_batches(lengths[::-1], token_budget=18, extra_tokens=1),
        "budget": plan_batches(lengths, token_budget=10, extra_tokens=1),
        "prefix": plan_batches(lengths, token_budget=18, extra_tokens=0),
    }
    assert plan_batches(lengths.astype(np.int32), token_budget=18, extra_tokens=1).digest() == plans["plan"].digest()
    assert len({plan.digest() for plan in plans.values()}) == len(plans)


@pytest.mark.parametrize("prompts", [4, 256])
def test_the_digest_tells_prompts_apart_also_where_they_change_no_batch(prompts: int) -> None:
    lengths = np.array([5, 3, 9])
    with_prompts, without = (plan_batches(lengths, token_budget=1000, extra_tokens=prefix) for prefix in (prompts, 0))
    assert with_prompts.starts.tolist() == without.starts.tolist()
    assert with_prompts.digest() != without.digest()


@quickly
@given(st.integers(1, 5), st.integers(0, 5), st.lists(st.booleans(), min_size=12, max_size=12))
def test_batches_that_share_a_beginning_go_to_the_ranks_for_them(
    ranks: int, sharing_ranks: int, is_sharing: list[bool]
) -> None:
    shapes = np.outer(is_sharing, [5, 5, 2, 30])
    plan = plan_batches(np.full(12, 10, dtype=np.int32), token_budget=10, extra_tokens=0)
    plan = replace(plan, shared=SharedPrefixes(shapes, shapes[:, 0], 1024), sharing_ranks=sharing_ranks)
    shards = [plan.shard(np.arange(12), rank=rank, world_size=ranks).tolist() for rank in range(ranks)]
    for rank, shard in enumerate(shards):
        assert not any(is_sharing[batch] for batch in shard) or rank < sharing_ranks or sharing_ranks == 0
    assert sorted(batch for shard in shards for batch in shard) == list(range(12))
    # each of them may have to go to the rank that has most
    assert max(map(len, shards)) - min(map(len, shards)) <= 1 + sum(is_sharing)
