"""Sharding of a DataLoader: each example once, for any sampler and number of ranks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from dist_eval.api.loaders import shard_loader
from dist_eval.api.row_digest import digest_of_rows
from dist_eval.errors import ConfigError, ExactnessError, RunError


class Examples(Dataset[dict[str, torch.Tensor]]):
    """Example i has label i, so that a batch shows which examples it holds."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"labels": torch.tensor(index)}


class Batched(Examples):
    """Is asked for batches."""

    def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
        return {"labels": torch.tensor(index)}


class Stream(IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter({"labels": torch.tensor(i)} for i in range(self.count))


def on_all_ranks(world_size: int, act: Callable[[int, Callable[[Any], list[Any]]], Any]) -> list[Any]:
    """Runs an action in one thread for each rank, with a gather between them."""
    meeting, given = threading.Barrier(world_size), [None] * world_size

    def rank(number: int) -> Any:
        def gather(value: Any) -> list[Any]:
            given[number] = value
            meeting.wait(60)
            everybody = list(given)
            meeting.wait(60)
            return everybody

        return act(number, gather)

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(rank, range(world_size)))


def seen_by(make: Callable[[int], Any], world_size: int) -> tuple[list[tuple[int, int]], set[int]]:
    """Returns position and label of all examples that count, and what the ranks say is their number."""

    def act(rank: int, gather: Callable[[Any], list[Any]]) -> tuple[list[tuple[int, int]], int]:
        shard = shard_loader(make(rank), rank=rank, world_size=world_size, gather=gather)
        pairs = [
            pair for at, batch in shard.batches for pair in zip(at.tolist(), batch["labels"].tolist(), strict=True)
        ]
        return [pair for pair in pairs if pair[0] >= 0], shard.count()

    shares = on_all_ranks(world_size, act)
    return sorted(pair for pairs, _ in shares for pair in pairs), {count for _, count in shares}


@given(
    count=st.integers(0, 40),
    batch_size=st.integers(1, 7),
    world_size=st.integers(1, 5),
    kind=st.sampled_from(["plain", "random", "distributed", "distributed in order", "stream", "list"]),
)
@settings(max_examples=150)
def test_each_example_counts_once(count: int, batch_size: int, world_size: int, kind: str) -> None:
    def make(rank: int) -> Any:
        examples = Examples(count)
        if kind == "plain":
            return DataLoader(examples, batch_size)
        if kind == "random" and count:
            return DataLoader(examples, batch_size, sampler=RandomSampler(examples))
        if kind.startswith("distributed"):
            shuffle = kind == "distributed"
            sampler = DistributedSampler(examples, world_size, rank, shuffle=shuffle) if count else None
            return DataLoader(examples, batch_size, sampler=sampler)
        if kind == "list":
            return list(DataLoader(examples, batch_size))
        return DataLoader(Stream(count), batch_size)

    pairs, counts = seen_by(make, world_size)
    assert pairs == [(i, i) for i in range(count)]
    assert counts == {count}


def test_a_subset_is_evaluated_in_the_datasets_order() -> None:
    pairs, counts = seen_by(lambda _: DataLoader(Examples(20), 2, sampler=SubsetRandomSampler([17, 3, 8])), 2)
    assert pairs == [(0, 3), (1, 8), (2, 17)]
    assert counts == {3}


def test_a_batch_holds_the_same_examples_on_any_number_of_ranks() -> None:
    def batches(world_size: int) -> set[tuple[int, ...]]:
        def act(rank: int, gather: Callable[[Any], list[Any]]) -> list[tuple[int, ...]]:
            shard = shard_loader(DataLoader(Examples(23), 4), rank=rank, world_size=world_size, gather=gather)
            return [tuple(batch["labels"].tolist()) for _, batch in shard.batches]

        return {batch for share in on_all_ranks(world_size, act) for batch in share}

    assert batches(1) == batches(2) == batches(5)


def plain(loader: Any) -> Any:
    return shard_loader(loader, rank=0, world_size=1, gather=lambda value: [value])


def sampler_of(examples: Dataset[Any], replicas: int, rank: int, **kwargs: Any) -> DistributedSampler[Any]:
    return DistributedSampler(examples, replicas, rank, **kwargs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: DataLoader(data, 4, drop_last=True), r"omits 2 examples.*drop_last=False"),
        (lambda data: DataLoader(Stream(10), 4, drop_last=True), "has drop_last=True"),
        (
            lambda data: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 3, drop_last=True)),
            "omits 1 example",
        ),
        (lambda data: DataLoader(data, 2, sampler=RandomSampler(data, replacement=True, num_samples=50)), "more than"),
        (lambda data: DataLoader(data, 2, sampler=sampler_of(data, 2, 0)), "for rank 0 of 2, but this is rank 0 of 1"),
        (lambda data: type("Prepared", (DataLoader,), {})(data, 2), "is a Prepared, which may shard"),
    ],
)
def test_what_would_falsify_the_figures_is_refused(make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plain(make(Examples(10)))


def test_a_sampler_that_fails_without_a_word_fails_on_all_ranks() -> None:
    class Broken(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError

    def act(rank: int, gather: Callable[[Any], list[Any]]) -> str:
        examples = Examples(10)
        sampler = Broken(examples) if rank == 1 else SequentialSampler(examples)
        with pytest.raises((AssertionError, RunError)) as caught:
            shard_loader(DataLoader(examples, 2, sampler=sampler), rank=rank, world_size=2, gather=gather)
        return str(caught.value)

    assert on_all_ranks(2, act) == ["Rank 1 failed: AssertionError", ""]


def test_a_sampler_that_drops_the_last_examples_is_refused_on_all_ranks() -> None:
    examples = Examples(10)

    def act(rank: int, gather: Callable[[Any], list[Any]]) -> str:
        loader = DataLoader(examples, 2, sampler=DistributedSampler(examples, 3, rank, drop_last=True))
        with pytest.raises(ConfigError) as caught:
            shard_loader(loader, rank=rank, world_size=3, gather=gather)
        return str(caught.value)

    assert all("omits 1 example" in message for message in on_all_ranks(3, act))


def test_what_one_rank_refuses_fails_on_all() -> None:
    examples = Examples(10)

    def act(rank: int, gather: Callable[[Any], list[Any]]) -> type[BaseException]:
        loader = DataLoader(examples, 2, sampler=DistributedSampler(examples, 2, 0))  # also on rank 1
        with pytest.raises((ConfigError, RunError)) as caught:
            shard_loader(loader, rank=rank, world_size=2, gather=gather)
        return caught.type

    assert on_all_ranks(2, act) == [RunError, ConfigError]


def test_streams_that_differ_between_ranks_are_an_error() -> None:
    def act(rank: int, gather: Callable[[Any], list[Any]]) -> None:
        shard = shard_loader(DataLoader(Stream(10 + rank), 2), rank=rank, world_size=2, gather=gather)
        list(shard.batches)
        with pytest.raises(ExactnessError, match=r"different examples on the ranks \(10, 11 of them"):
            shard.count()

    on_all_ranks(2, act)


def test_data_that_are_sharded_already_are_an_error() -> None:
    def own_stream(rank: int) -> Any:
        return [{"labels": torch.arange(rank, 20, 2)[i : i + 2]} for i in range(0, 10, 2)]

    def own_subset(rank: int) -> Any:
        return DataLoader(Subset(Examples(20), range(rank, 20, 2)), 2)

    def own_sampler(rank: int) -> Any:
        return DataLoader(Examples(20), 2, sampler=SubsetRandomSampler(range(rank, 20, 2)))

    def other_order(rank: int) -> Any:
        shuffled = BatchSampler(RandomSampler(Examples(20), generator=torch.Generator().manual_seed(rank)), 4, False)
        return DataLoader(Batched(20), batch_size=None, sampler=shuffled)

    def mixed(rank: int) -> Any:
        examples = Examples(20)
        return DataLoader(examples, 2, sampler=DistributedSampler(examples, 2, rank) if rank else None)

    causes = {
        own_stream: "different examples on the ranks",
        own_subset: "have different datasets",
        own_sampler: "samplers that draw different examples",
        other_order: "different examples on the ranks",
        mixed: "are of different kinds",
    }

    def act(rank: int, gather: Callable[[Any], list[Any]]) -> None:
        for make, cause in causes.items():
            with pytest.raises(ExactnessError, match=cause):
                shard = shard_loader(make(rank), rank=rank, world_size=2, gather=gather)
                list(shard.batches)
                shard.count()

    on_all_ranks(2, act)


def rows_as_tuples(order: list[int]) -> Any:
    return [(torch.tensor([1, 2, index]), index % 2) for index in order]


def rows_as_mappings(order: list[int]) -> Any:
    return [{"labels": index % 2, "pixels": np.full((2, 2), index)} for index in order]


def rows_as_texts(order: list[int]) -> Any:
    return [SimpleNamespace(text=f"text {index}", labels=index % 2) for index in order]


def rows_as_tensors(order: list[int]) -> Any:
    return TensorDataset(torch.tensor(order).float().bfloat16(), torch.tensor(order) % 2)


def labels_only(rows: Any) -> dict[str, torch.Tensor]:
    return {"labels": torch.zeros(len(rows))}


@pytest.mark.parametrize("rows_in", [rows_as_tuples, rows_as_mappings, rows_as_texts, rows_as_tensors])
@pytest.mark.parametrize("loader", ["plain", "random", "distributed", "stream"])
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 999))
def test_data_in_another_order_on_another_rank_are_noticed_in_any_form(rows_in: Any, loader: str, seed: int) -> None:
    """Labels alone, of two classes, are often the same in another order."""

    def make(rank: int) -> Any:
        order = [*range(20)]
        random.Random(seed).shuffle(order)
        if rank:
            random.Random(f"another {seed}").shuffle(order)
        data, options = rows_in(order), {"batch_size": 4, "collate_fn": labels_only}
        if loader == "stream":
            batches = DataLoader(data, 4, collate_fn=lambda rows: {**labels_only(rows), "rows": rows})
            return list(batches)
        if loader == "distributed":
            return DataLoader(data, sampler=DistributedSampler(data, 2, rank), **options)
        return DataLoader(data, shuffle=loader == "random", **options)

    def act(rank: int, gather: Callable[[Any], list[Any]]) -> None:
        with pytest.raises(ExactnessError, match=r"(have different datasets|different examples on)"):
            shard = shard_loader(make(rank), rank=rank, world_size=2, gather=gather)
            list(shard.batches)
            shard.count()

    on_all_ranks(2, act)
    assert digest_of_rows(rows_in([*range(20)])) == digest_of_rows(rows_in([*range(20)]))


def test_rows_that_differ_at_each_reading_are_not_compared() -> None:
    class Augmented(Examples):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"labels": torch.tensor(index), "pixels": torch.randn(3)}

    pairs, _ = seen_by(lambda _: DataLoader(Augmented(9), 2), 2)
    assert pairs == [(i, i) for i in range(9)]


@pytest.mark.parametrize(
    ("setting", "advice"),
    [("seed", "Give the same seed on all ranks"), ("epoch", "Call set_epoch with the same number on all ranks")],
)
def test_samplers_that_shuffle_differently_are_refused_with_the_setting(setting: str, advice: str) -> None:
    examples = Examples(20)

    def act(rank: int, gather: Callable[[Any], list[Any]]) -> None:
        sampler = DistributedSampler(examples, 2, rank, shuffle=True, seed=rank if setting == "seed" else 0)
        sampler.set_epoch(rank if setting == "epoch" else 0)
        with pytest.raises(ExactnessError, match=rf"differ in {setting} \(0 on rank 0, 1 on rank 1\).*{advice}"):
            shard_loader(DataLoader(examples, 2, sampler=sampler), rank=rank, world_size=2, gather=gather)

    on_all_ranks(2, act)


def test_shards_that_overlap_without_a_known_setting_are_refused_as_such() -> None:
    class Own:
        """Shards by a way of its own, which is wrong."""

        num_replicas, drop_last = 2, False

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

        def __len__(self) -> int:
            return 10

    def act(rank: int, gather: Callable[[Any], list[Any]]) -> None:
        with pytest.raises(
            ExactnessError, match="draw 20 examples together, but only 10 of the 20: their shards overl"
        ):
            loader = DataLoader(Examples(20), 2, sampler=Own(rank))
            shard_loader(loader, rank=rank, world_size=2, gather=gather)

    on_all_ranks(2, act)


def test_a_custom_batch_sampler_counts_as_it_draws() -> None:
    class InPieces:
        """Groups examples, by default differently on each rank."""

        def __iter__(self) -> Iterator[list[int]]:
            order = torch.randperm(12).tolist()
            return iter([order[i : i + 5] for i in range(0, 12, 5)])

    pairs, counts = seen_by(lambda _: DataLoader(Examples(12), batch_sampler=InPieces()), 3)
    assert pairs == [(i, i) for i in range(12)] and counts == {12}


def test_batches_without_labels_and_with_too_few_are_an_error() -> None:
    with pytest.raises(ConfigError, match="'labels' is missing in a dict of text"):
        list(plain([{"text": ["a"]}]).batches)
    with pytest.raises(ConfigError, match="'labels' is missing in a list"):
        list(plain([[torch.ones(2), torch.ones(2)]]).batches)
    with pytest.raises(ConfigError, match=r"single examples.*Give it a batch_size"):
        list(plain(DataLoader(Examples(4), batch_size=None)).batches)
    halving = DataLoader(Examples(4), 4, collate_fn=lambda rows: {"labels": torch.ones(len(rows) // 2)})
    with pytest.raises(ConfigError, match="made a batch of 2 labels from 4 examples"):
        list(plain(halving).batches)


def test_workers_that_yield_the_same_stream_are_refused() -> None:
    with pytest.raises(ExactnessError, match="2 workers of the eval_dataloader yield the same examples"):
        seen_by(lambda _: DataLoader(Stream(10), 3, num_workers=2), 1)


class Shuffled(Stream):
    """Has a length, and yields other batches in each worker."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        info = torch.utils.data.get_worker_info()
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(info.id if info else 0))
        return iter({"labels": index} for index in order)

    def __len__(self) -> int:
        return self.count


def test_a_stream_is_as_long_as_its_dataset() -> None:
    with pytest.raises(ExactnessError, match="yields more examples than the 10 of its dataset's length"):
        seen_by(lambda _: DataLoader(Shuffled(10), 3, num_workers=2), 1)
    assert seen_by(lambda _: DataLoader(Shuffled(10), 3), 1)[1] == {10}


@pytest.mark.parametrize("indices", [[0, 1, -1], [-3]])
def test_indices_from_the_end_are_refused(indices: list[int]) -> None:
    with pytest.raises(ConfigError, match=rf"draws the index {indices[-1]}"):
        plain(DataLoader(Examples(3), 2, sampler=indices))


def test_worker_processes_keep_working() -> None:
    pairs, _ = seen_by(lambda _: DataLoader(Examples(9), 2, num_workers=2), 1)
    assert np.array(pairs).tolist() == [[i, i] for i in range(9)]
