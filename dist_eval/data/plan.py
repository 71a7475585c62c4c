"""The plan: lengths → batches that fill a token budget; batches → this rank's shard.

Every rank computes the same plan, so neither the content of a batch nor its results depend on the number of ranks.
Needs no model and no process group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data.distributed import DistributedSampler

from dist_eval.results.inputs import PlanSummary, SessionsSummary


class SharedPrefix(NamedTuple):
    """A prefix of the texts of a batch, which a model with attention caches computes once."""

    tokens: int  # length of the prefix, including prompts
    # the part of it that all texts share, computed once for many batches. If it is shorter than `tokens`, each row has
    # a prefix of its own: a context with several continuations.
    common: int
    rows: int  # number of texts that are continued at a time
    length: int  # maximum number of tokens of a text, including prompts


@dataclass(frozen=True)
class SharedPrefixes:
    """The prefixes of the texts of each batch in a plan."""

    shapes: np.ndarray  # fields of the `SharedPrefix` of each batch, 0 without one, int64 of shape [batches, 4]
    saved: np.ndarray  # tokens that plain forwards would add to `BatchPlan.tokens`, int64 of shape [batches]
    cache_tokens: int  # maximum number of tokens of the rows that are continued at a time, unless it is a single row

    @property
    def batches(self) -> np.ndarray:
        """Whether each batch has a shared prefix, bool of shape [batches]."""
        return self.shapes[:, 0] > 0

    @property
    def largest_cache(self) -> int:
        """Maximum number of tokens of the rows that are continued at a time."""
        return int((self.shapes[:, 2] * self.shapes[:, 3]).max(initial=0))

    @classmethod
    def join(cls, plans: Sequence[BatchPlan]) -> SharedPrefixes | None:
        """Concatenates the prefixes of several plans."""
        if all(plan.shared is None for plan in plans):
            return None
        nothing = [np.zeros((len(plan), len(SharedPrefix._fields)), dtype=np.int64) for plan in plans]
        parts = [plan.shared or cls(none, none[:, 0], 0) for plan, none in zip(plans, nothing, strict=True)]
        return cls(
            np.concatenate([part.shapes for part in parts]),
            np.concatenate([part.saved for part in parts]),
            max(part.cache_tokens for part in parts),
        )


@dataclass(frozen=True)
class BatchPlan:
    """All batches of a run, longest first; batches with a shared prefix come before the others."""

    order: np.ndarray  # rows of the dataset, sorted by length, int64 of shape [n]
    starts: np.ndarray  # start of each batch in `order`, and n at the end, int64 of shape [batches + 1]
    tokens: np.ndarray  # tokens of each batch, including padding and prompts, int64 of shape [batches]
    real_tokens: np.ndarray  # the same without padding, int64 of shape [batches]
    extra_tokens: int  # tokens that are sent with each example in addition to its own
    shared: SharedPrefixes | None = None  # shared prefixes; None if each text is sent whole
    sharing_ranks: int = 0  # number of ranks, from 0, that get the batches with a shared prefix; 0 for all

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Examples in each batch, int64 of shape [batches]."""
        return np.diff(self.starts)

    def batch(self, number: int) -> np.ndarray:
        """Returns the rows of the dataset that batch `number` holds, int64 of shape [batch_size]."""
        return self.order[self.starts[number] : self.starts[number + 1]]

    def shared_by(self, number: int) -> SharedPrefix | None:
        """Returns the shared prefix of batch `number`, None for a plain forward."""
        if self.shared is None or not self.shared.shapes[number, 0]:
            return None
        return SharedPrefix(*self.shared.shapes[number].tolist())

    def shard(self, left: np.ndarray, *, rank: int, world_size: int) -> np.ndarray:
        """Assigns batches to one rank: in turn, or balanced by tokens if some batches are reserved for some ranks.

        `left` are the numbers of the remaining batches, and the result those of this rank; both ascending, int64 of
        shape [n].
        """
        is_sharing = np.zeros(len(left), dtype=bool) if self.shared is None else self.shared.batches[left]
        if not 0 < self.sharing_ranks < world_size or not is_sharing.any():
            return left[shard_batches(len(left), rank=rank, world_size=world_size)]
        owners, tokens = np.empty(len(left), dtype=np.int64), np.zeros(world_size)
        for place, batch in enumerate(left):
            owners[place] = tokens[: self.sharing_ranks if is_sharing[place] else world_size].argmin()
            tokens[owners[place]] += self.tokens[batch]
        return left[owners == rank]

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest batch, counting the shared prefix of each text."""
        return int((self.tokens if self.shared is None else self.tokens + self.shared.saved).max(initial=0))

    def summary(self) -> PlanSummary:
        """Returns the section `plan` of `results.json`."""
        return PlanSummary(
            batches=len(self),
            padded_tokens=int(self.tokens.sum()),
            real_tokens=int(self.real_tokens.sum()),
            digest=self.digest(),
        )

    @property
    def gain(self) -> float:
        """Ratio of the tokens of plain forwards to those sent, for the batches with a shared prefix; 1 without any."""
        if self.shared is None:
            return 1.0
        own = self.tokens[self.shared.batches].sum()
        return float((own + self.shared.saved.sum()) / own)

    def sessions(self, fell_back: int) -> SessionsSummary | None:
        """Returns the section `sessions` of `results.json`; `fell_back` batches took plain forwards after all."""
        if self.shared is None:
            return None
        return SessionsSummary(
            session_tokens=self.shared.cache_tokens,
            batches=int(self.shared.batches.sum()),
            rows=int(self.sizes[self.shared.batches].sum()),
            saved_tokens=int(self.shared.saved.sum()),
            fell_back=fell_back,
        )

    def digest(self) -> str:
        """Returns a hash of the plan."""
        digest = hashlib.sha256()
        for part in (self.order, self.starts, *(() if self.shared is None else (self.shared.shapes,))):
            digest.update(np.ascontiguousarray(part).data)
        digest.update(self.extra_tokens.to_bytes(8, "little"))
        if self.shared is not None:
            digest.update(self.shared.cache_tokens.to_bytes(8, "little"))
        return digest.hexdigest()


def plan_batches(
    lengths: np.ndarray,
    *,
    token_budget: int,
    extra_tokens: int = 0,
    copies: int = 1,
    most_apart: int | None = None,
    rows: np.ndarray | None = None,
) -> BatchPlan:
    """Sorts examples by length, longest first, and splits them into batches that fill a token budget.

    Examples of similar length share a batch, which minimizes padding. The longest come first: a batch too large for a
    server fails at once, and the last batches are the cheapest. Examples of equal length keep the dataset's order.
    Every row is in exactly one batch.

    Args:
        lengths: tokens of each example, at least 1, integers of shape [n].
        token_budget: maximum number of tokens in a batch, including padding and prompts. An example that exceeds it
            is a batch of its own.
        extra_tokens: tokens that are sent with each example in addition to its own.
        copies: number of times that each example is sent, with a different continuation each time.
        most_apart: maximum difference between the lengths in a batch; by default unlimited.
        rows: the row of the dataset of each example, int64 of shape [n]; by default its position.
    """
    lengths = np.asarray(lengths)
    longest = int(lengths.max(initial=0))
    # in the smallest dtype: up to 16 bits, NumPy's stable sort is a radix sort, with linear time and little memory
    shortness = np.subtract(longest, lengths, dtype=np.min_scalar_type(longest), casting="unsafe")
    order = np.argsort(shortness, kind="stable")
    starts, tokens, start = [0], [], 0
    while start < len(order):
        width = extra_tokens + int(lengths[order[start]])
        end = min(start + max(1, token_budget // (copies * width)), len(order))
        if most_apart is not None:
            end = start + int((lengths[order[start:end]] >= lengths[order[start]] - most_apart).sum())
        tokens.append((end - start) * copies * width)
        starts.append(end)
        start = end
    sizes = np.diff(starts)
    texts = np.add.reduceat(lengths[order], starts[:-1], dtype=np.int64) if len(sizes) else sizes
    return BatchPlan(
        order=order if rows is None else np.asarray(rows)[order],
        starts=np.asarray(starts, dtype=np.int64),
        tokens=np.asarray(tokens, dtype=np.int64),
        extra_tokens=extra_tokens,
        real_tokens=copies * (texts + extra_tokens * sizes),
    )


def expand_plan(plan: BatchPlan, forward_of: np.ndarray) -> BatchPlan:
    """Turns a plan of forwards into a plan of the texts that share them; `forward_of` is int64 of shape [n].

    The texts of a forward are in one batch, and its tokens count once.
    """
    counts = np.bincount(forward_of, minlength=len(plan.order))[plan.order]
    place = np.empty(len(plan.order), dtype=np.int64)
    place[plan.order] = np.arange(len(plan.order))
    ends = np.concatenate([[0], np.cumsum(counts)])
    return replace(plan, order=np.argsort(place[forward_of], kind="stable"), starts=ends[plan.starts])


def join_plans(parts: Sequence[tuple[BatchPlan, np.ndarray]]) -> BatchPlan:
    """Concatenates plans for parts of a dataset; no batch has examples of two parts.

    `parts` are at least one plan, all with the same extra tokens, and the position in the dataset of each of its
    examples, int64 of shape [n].
    """
    plans = [plan for plan, _ in parts]
    offsets = np.cumsum([0, *(len(plan.order) for plan in plans)])
    starts = [plan.starts[:-1] + offset for plan, offset in zip(plans, offsets, strict=False)]
    return BatchPlan(
        order=np.concatenate([positions[plan.order] for plan, positions in parts]),
        starts=np.concatenate([*starts, offsets[-1:]]),
        tokens=np.concatenate([plan.tokens for plan in plans]),
        real_tokens=np.concatenate([plan.real_tokens for plan in plans]),
        extra_tokens=plans[0].extra_tokens,
        shared=SharedPrefixes.join(plans),
    )


def shard_batches(count: int, *, rank: int, world_size: int) -> np.ndarray:
    """Assigns batches to one rank as `DistributedSampler` does, without the items that it repeats as padding.

    The sampler gives all ranks the same number of items by repeating the first ones. Its k-th item for a rank is at
    position `rank + k * world_size` of its list, so items at positions from `count` on are repeats. All ranks give the
    same `count`. Returns the batches of this rank, ascending, int64 of shape [batches of this rank], possibly empty.
    """
    if count == 0:
        return np.empty(0, dtype=np.int64)
    batches: Any = range(count)  # the sampler needs only the length of a dataset
    sampler: DistributedSampler[int] = DistributedSampler(batches, num_replicas=world_size, rank=rank, shuffle=False)
    dealt = np.fromiter(sampler, dtype=np.int64)
    return dealt[rank + np.arange(len(dealt)) * world_size < count]
