"""Contexts and continuations: what is written, cut, and planned by distinct forwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dist_eval.data.continuations import TokenizedContinuations, distinct_forwards, write_continuations

TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=4)


def test_texts_come_back_cut_from_the_left(tmp_path: Path) -> None:
    pairs = [([1, 2, 3], [4]), ([5], [6, 7]), ([1, 2, 3, 4, 5], [6, 7, 8])]
    write_continuations(tmp_path, pairs, max_length=5)
    data = TokenizedContinuations(tmp_path)
    input_ids, lengths = data.padded(np.array([2, 1, 0]))
    assert input_ids.tolist() == [[4, 5, 6, 7, 8], [5, 6, 7, 0, 0], [1, 2, 3, 4, 0]]
    assert lengths.tolist() == [[2, 5], [1, 3], [3, 4]]
    assert input_ids.dtype == lengths.dtype == np.int64
    assert (len(data), data.facts.truncated, data.facts.longest, data.facts.max_length) == (3, 1, 8, 5)


def test_none_are_written_too(tmp_path: Path) -> None:
    data = write_continuations(tmp_path, [], max_length=5)
    assert len(data) == len(data.plan(10)) == 0


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=30), st.integers(1, 40))
def test_texts_with_equal_forwards_share_a_batch_and_its_tokens(
    tmp_path_factory: object, pairs: list[tuple[list[int], list[int]]], token_budget: int
) -> None:
    folder = tmp_path_factory.mktemp("data")  # type: ignore[attr-defined]
    data = write_continuations(folder, pairs, max_length=6)
    plan = data.plan(token_budget)
    assert sorted(plan.order.tolist()) == list(range(len(pairs)))
    batches = [plan.batch(number) for number in range(len(plan))]
    seen: set[tuple[int, ...]] = set()
    for batch, tokens, real_tokens in zip(batches, plan.tokens, plan.real_tokens, strict=True):
        input_ids, lengths = data.padded(batch)
        forwards, _ = distinct_forwards(input_ids, lengths[:, 1])
        assert forwards.size == tokens <= max(token_budget, forwards.shape[1])
        own = {tuple(row[: length - 1]) for row, length in zip(input_ids.tolist(), lengths[:, 1], strict=True)}
        assert sum(map(len, own)) == real_tokens
        assert not own & seen, "it is sent twice"
        seen |= own
    assert data.facts.forwards == len(seen) == len(pairs) - data.facts.saved


def test_the_digest_tells_where_a_context_ends(tmp_path: Path) -> None:
    digests = set()
    for number, pairs in enumerate([[([1], [2, 3])], [([1, 2], [3])], [([1], [2]), ([3], [3])]]):
        folder = tmp_path / str(number)
        folder.mkdir()
        digests.add(write_continuations(folder, pairs, max_length=9).facts.digest)
    assert len(digests) == 3
