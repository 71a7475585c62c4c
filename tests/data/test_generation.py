"""Prompts on disk, and their batches; and where generated texts end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from harness_tasks import make_tokenizer

from dist_eval.data.generation import StopStrings, TokenizedPrompts, text_of, write_prompts
from dist_eval.data.prefix_costs import CACHE_TOKENS
from dist_eval.results.inputs import Decoding

SHORT, LONG = Decoding(max_new_tokens=4), Decoding(max_new_tokens=30, stop=["x"])


def some_prompts(folder: Path, count: int = 400) -> tuple[TokenizedPrompts, list[list[int]]]:
    lengths = np.random.default_rng(0).integers(1, 60, count)
    prompts = [list(range(length)) for length in lengths]
    return write_prompts(
        folder, ((ids, LONG if row % 3 else SHORT) for row, ids in enumerate(prompts)), max_length=50
    ), prompts


def test_long_prompts_are_cut_from_the_left_and_counted(tmp_path: Path) -> None:
    data, prompts = some_prompts(tmp_path)
    rooms = [50 - (LONG if row % 3 else SHORT).max_new_tokens for row in range(len(prompts))]
    assert data.facts.decodings == [SHORT, LONG] and len(data) == len(prompts)
    assert data.facts.truncated == sum(len(ids) > room for ids, room in zip(prompts, rooms, strict=True)) > 0
    rows = np.asarray([4, 1, 7])
    ids, lengths = data.padded(rows)
    assert lengths[:, 1:].tolist() == [[1, 4], [1, 1], [1, 7]]
    for row, found, length in zip(rows, ids, lengths[:, 0], strict=True):
        assert found[:length].tolist() == prompts[row][-rooms[row] :]


def test_a_batch_has_one_decoding_and_fits_the_servers_caches(tmp_path: Path) -> None:
    data, _ = some_prompts(tmp_path)
    plan, lengths = data.plan(), np.asarray(data.lengths)
    assert sorted(plan.order.tolist()) == list(range(len(data)))
    for number in range(len(plan)):
        own = lengths[plan.batch(number)]
        [decoding] = set(own[:, 1].tolist())
        most = data.facts.decodings[decoding].max_new_tokens
        assert len(own) * (own[:, 0].max() + most - 1) <= CACHE_TOKENS
        assert np.ptp(own[:, 0]) <= max(1, most // 4)
    assert len(plan) < 3 * (lengths[:, 0] + 29).sum() / CACHE_TOKENS


def test_a_stop_string_may_be_split_in_any_way() -> None:
    tokenizer = make_tokenizer(128)
    stops = StopStrings(["one win", ""], tokenizer)
    ids = tokenizer.encode("river stone winter", add_special_tokens=False)
    ends = [stops.end(ids[:size]) for size in range(1, len(ids) + 1)]
    assert ends[-1] and not ends[0] and ends == sorted(ends)
    assert text_of([*ids, 2], ["one win", ""], tokenizer) == "river st"
    assert not StopStrings([], tokenizer).end(ids)
