"""Shards a DataLoader: each example is evaluated by exactly one rank. Opens no process group.

A plain DataLoader is sharded by whole batches, so its batches are the same on any number of ranks. If its sampler
already shards, these shards are used, and examples that the sampler repeats to give all ranks equally many are dropped
by their index in the dataset. Every rank reads any other iterable of batches, and keeps its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from dist_eval.api.row_digest import digest_of, digest_of_rows
from dist_eval.data.plan import shard_batches
from dist_eval.errors import ConfigError, ExactnessError, RunError, one_line
from dist_eval.tables import format_count

Gather = Callable[[Any], list[Any]]
"""Gathers an object from every rank on every rank."""

_KEPT_ARGUMENTS = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
)

_SETTINGS = ("seed", "epoch", "shuffle", "drop_last")  # of DistributedSampler and similar samplers
_RANKS_NAMED = 6

_DIFFERENCES = (
    "are of different kinds. Give the whole dataset on every rank: `evaluate` shards it, or a DistributedSampler on "
    "all ranks.",
    "have different datasets: other rows, or the same rows in another order. Give every rank the whole dataset in the "
    "same order: draw and shuffle with the same seed on all ranks.",
    "have samplers that draw different examples. Give every rank the same examples: `evaluate` shards them, or a "
    "DistributedSampler on all ranks.",
)


@dataclass(frozen=True)
class LoaderShard:
    """One rank's shard of the batches of an evaluation set."""

    # yields for each batch the positions of its examples in the evaluation set, int64 of shape [rows], with -1 for a
    # repeated example, and the batch as the DataLoader yields it
    batches: Iterable[tuple[np.ndarray, Any]]
    # returns the number of examples of the evaluation set; call it once the batches are exhausted
    count: Callable[[], int]


def shard_loader(loader: Iterable[Any], *, rank: int, world_size: int, gather: Gather) -> LoaderShard:
    """Takes one rank's shard of the batches of a DataLoader; every rank calls it."""
    failure = batches = sampler = None
    is_sharded, of_rows, of_members = False, "", ""
    try:
        sampler = _sampler_of(loader)
        is_sharded = hasattr(sampler, "num_replicas") and hasattr(sampler, "rank")
        if is_sharded and (sampler.num_replicas, sampler.rank) != (world_size, rank):
            raise ConfigError(
                f"The eval_dataloader's {type(sampler).__name__} is for rank {sampler.rank} of {sampler.num_replicas}, "
                f"but this is rank {rank} of {world_size}. Make it with num_replicas={world_size} and this rank."
            )
        if sampler is not None:
            batches = _index_batches(loader)
            of_rows = digest_of_rows(cast(Any, loader).dataset) if world_size > 1 else ""
            if not (is_sharded or isinstance(sampler, RandomSampler)):  # a random sampler may draw a subset
                of_members = hashlib.sha256(np.unique(_joined(batches)).tobytes()).hexdigest()
        elif getattr(loader, "drop_last", False):
            raise ConfigError(
                "The eval_dataloader has drop_last=True, so the metrics might not be those of all examples: give it "
                "drop_last=False."
            )
    except Exception as error:  # any error must reach the other ranks
        failure = error
    # ranks may draw a random order differently, so all use rank 0's order
    is_shared = sampler is not None and (is_sharded or (rank == 0 and not _is_in_order(loader)))
    kind = (batches is None, is_sharded)
    settings = {name: getattr(sampler, name) for name in _SETTINGS if is_sharded and hasattr(sampler, name)}
    own = (kind, of_rows, of_members)
    everybody = gather((failure and one_line(failure), own, batches if is_shared else None, settings))
    if failure is not None:
        raise failure
    for other, (text, *_) in enumerate(everybody):
        if text:
            raise RunError(f"Rank {other} failed: {text}")
    for found, what in zip(zip(*(theirs for _, theirs, *_ in everybody), strict=True), _DIFFERENCES, strict=True):
        if len({*found}) > 1:
            raise ExactnessError(f"The eval_dataloaders of the ranks {what}")
    if batches is None:
        return _shard_of_stream(loader, rank, world_size, gather)
    shared = [theirs for *_, theirs, _ in everybody]
    if is_sharded:
        return _shard_of_sharded(loader, batches, shared, [settings for *_, settings in everybody], rank)
    return _shard_of_plain(loader, sampler, shared[0] or batches, rank, world_size)


def _is_in_order(loader: Any) -> bool:
    """Returns whether a DataLoader draws the same batches on every rank without communication."""
    sampler = loader.batch_sampler
    return type(sampler) is BatchSampler and isinstance(sampler.sampler, SequentialSampler)


def _sampler_of(loader: Iterable[Any]) -> Any:
    """Returns the sampler that draws the examples; None if the batches come from a stream."""
    if not isinstance(loader, DataLoader):
        return None
    if type(loader) is not DataLoader:
        raise ConfigError(
            f"The eval_dataloader is a {type(loader).__name__}, which may shard or repeat examples. Pass the plain "
            "torch DataLoader that it was created from."
        )
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return None
    if hasattr(loader.batch_sampler, "num_replicas"):
        return loader.batch_sampler
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def _shard_of_plain(
    loader: Any, sampler: Any, batches: Sequence[np.ndarray], rank: int, world_size: int
) -> LoaderShard:
    drawn = _joined(batches)
    members, counts = np.unique(drawn, return_counts=True)
    if len(members) < len(drawn):
        raise ConfigError(
            f"The eval_dataloader draws some examples more than once (such as {members[counts.argmax()]}, "
            f"{counts.max()} times): use a sampler without replacement."
        )
    is_known = type(loader.batch_sampler) is BatchSampler and hasattr(sampler, "__len__")
    chosen = len(sampler) if is_known else len(drawn)  # a custom batch sampler may omit any examples
    if len(drawn) < chosen:
        raise _left_out(chosen - len(drawn))
    own = [batches[number] for number in shard_batches(len(batches), rank=rank, world_size=world_size)]
    positions = [np.searchsorted(members, batch) for batch in own]
    return LoaderShard(_Zipped(positions, _only(loader, own)), lambda: len(members))


def _shard_of_sharded(
    loader: Any,
    batches: Sequence[np.ndarray],
    everybody: Sequence[Sequence[np.ndarray]],
    settings: Sequence[Mapping[str, Any]],
    rank: int,
) -> LoaderShard:
    total = len(loader.dataset)
    seen = np.zeros(total, dtype=bool)
    for theirs in everybody[:rank]:
        seen[_joined(theirs)] = True
    positions = []
    for batch in batches:
        first = np.zeros(len(batch), dtype=bool)
        first[np.unique(batch, return_index=True)[1]] = True
        positions.append(np.where(first & ~seen[batch], batch, -1))
        seen[batch] = True
    for theirs in everybody[rank + 1 :]:
        seen[_joined(theirs)] = True
    if not seen.all():
        _require_same_settings(settings)
        drawn = sum(map(len, map(_joined, everybody)))
        if drawn >= total:
            raise ExactnessError(
                f"The samplers of the ranks draw {format_count(drawn, 'example')} together, but only {seen.sum()} of "
                f"the {total}: their shards overlap. Shuffle with the same seed on all ranks, or not at all."
            )
        raise _left_out(int(total - seen.sum()))
    return LoaderShard(_Zipped(positions, _only(loader, batches)), lambda: total)


def _require_same_settings(of_ranks: Sequence[Mapping[str, Any]]) -> None:
    for name in of_ranks[0]:
        values = [settings.get(name) for settings in of_ranks]
        if any(value != values[0] for value in values):
            shown = ", ".join(f"{value!r} on rank {rank}" for rank, value in enumerate(values[:_RANKS_NAMED]))
            advice = "Call set_epoch with the same number" if name == "epoch" else f"Give the same {name}"
            raise ExactnessError(
                f"The eval_dataloaders' samplers differ in {name} ({shown}), so their shards overlap and omit "
                f"examples. {advice} on all ranks."
            )


def _shard_of_stream(loader: Iterable[Any], rank: int, world_size: int, gather: Gather) -> LoaderShard:
    stream = _Stream(loader, rank, world_size)

    def count() -> int:
        everybody = gather((stream.rows, stream.digest.hexdigest()))
        if len({*everybody}) > 1:
            counts = [rows for rows, _ in everybody]
            raise ExactnessError(
                f"The eval_dataloader yields different examples on the ranks ({', '.join(map(str, counts[:6]))} of "
                "them on ranks 0, 1, ...). All ranks must read the same examples in the same order: disable sharding "
                "and shuffling in the dataset or its wrapper."
            )
        return stream.rows

    return LoaderShard(stream, count)


def _length_of(loader: Any) -> float:
    """Returns the most examples that the iterable dataset of a DataLoader has; infinity if it does not say."""
    if not (isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset) and loader.batch_size):
        return math.inf
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except Exception:  # a dataset need not have a length
        return math.inf


def _only(loader: Any, batches: Sequence[np.ndarray]) -> DataLoader[Any]:
    """Returns a copy of a DataLoader that yields only some batches, given the indices of their examples."""
    arguments = {name: getattr(loader, name) for name in _KEPT_ARGUMENTS}
    return DataLoader(loader.dataset, batch_sampler=[batch.tolist() for batch in batches], **arguments)


def _joined(batches: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.int64), *batches])


class _Stream:
    """Every `world_size`-th batch of an iterable of batches, with the positions of its examples."""

    def __init__(self, loader: Iterable[Any], rank: int, world_size: int) -> None:
        self._loader, self._rank, self._world_size, self.rows = loader, rank, world_size, 0
        self.digest = hashlib.sha256()

    def __iter__(self) -> Iterator[tuple[np.ndarray, Any]]:
        workers = getattr(self._loader, "num_workers", 0)
        first, length = set[bytes](), _length_of(self._loader)
        for number, batch in enumerate(self._loader):
            rows, of_batch = rows_of(batch), digest_of(batch)
            self.digest.update(of_batch)
            if number < workers:
                first.add(of_batch)
            if number + 1 == workers and workers > 1 and len(first) == 1:
                raise ExactnessError(
                    f"The {workers} workers of the eval_dataloader yield the same examples: divide them by "
                    "torch.utils.data.get_worker_info() in the dataset, or give num_workers=0."
                )
            if number % self._world_size == self._rank:
                yield np.arange(self.rows, self.rows + rows), batch
            self.rows += rows
            if self.rows > length:
                raise ExactnessError(
                    f"The eval_dataloader yields more examples than the {length} of its dataset's length. If its "
                    "workers yield the same ones, divide them by torch.utils.data.get_worker_info() in the dataset, or "
                    "give num_workers=0; otherwise correct its __len__."
                )


@dataclass(frozen=True)
class _Zipped:
    positions: Sequence[np.ndarray]
    loader: DataLoader[Any]

    def __iter__(self) -> Iterator[tuple[np.ndarray, Any]]:
        batches = iter(self.loader)
        for positions in self.positions:
            batch = next(batches)
            if rows_of(batch) != len(positions):
                raise ConfigError(
                    f"The eval_dataloader's collate_fn made a batch of {rows_of(batch)} labels from {len(positions)} "
                    "examples. It must keep all examples, in order."
                )
            yield positions, batch


def rows_of(batch: Any) -> int:
    """Returns the number of examples in a batch, from its labels."""
    try:
        labels = batch["labels"]
    except (KeyError, TypeError, IndexError) as error:
        raise ConfigError(
            "The eval_dataloader must yield batches that map 'input_ids', 'attention_mask' and 'labels' to tensors, "
            f"but 'labels' is missing in a {type(batch).__name__}"
            + (f" of {', '.join(map(str, batch))}." if hasattr(batch, "keys") else ".")
        ) from error
    if not getattr(labels, "shape", True):
        raise ConfigError(
            "The eval_dataloader yields single examples: a batch's 'labels' must have shape [batch]. Give it a "
            "batch_size."
        )
    return len(labels)


def _index_batches(loader: Any) -> list[np.ndarray]:
    sampler = loader.batch_sampler
    if isinstance(sampler, BatchSampler) and sampler.drop_last:
        examples: Any = sampler.sampler
        if len(examples) % sampler.batch_size:
            raise _left_out(len(examples) % sampler.batch_size)
    batches = [np.asarray(batch, dtype=np.int64) for batch in sampler]
    if (drawn := _joined(batches)).min(initial=0) < 0:  # counted from the end, it may be an example that comes again
        raise ConfigError(
            f"The eval_dataloader's sampler draws the index {drawn.min()}: have it count examples from 0 on."
        )
    return batches


def _left_out(count: int) -> ConfigError:
    return ConfigError(
        f"The eval_dataloader omits {format_count(count, 'example')}, so the metrics would not be those of the "
        "dataset. Set drop_last=False on it and its sampler."
    )
