"""Contexts with several continuations each: planned so that each context is computed once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_eval.data.plan import BatchPlan, SharedPrefix, SharedPrefixes
from dist_eval.data.prefix_costs import CACHE_READING, MORE_ROWS, REQUEST_OVERHEAD, WORTHWHILE, Costs

# Maximum number of padded tokens in a group, which the client holds in memory; larger contexts are split into batches
_LARGEST = 4096


def _contexts(
    texts: np.ndarray, continues_context: np.ndarray, lengths: np.ndarray, costs: Costs
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the start of each context in `texts` and its number of continuations; large contexts are split."""
    starts = np.flatnonzero(~continues_context[texts])
    if not len(starts):
        return starts, starts
    counts = np.diff(np.append(starts, len(texts)))
    widths = costs.extra_tokens + np.maximum.reduceat(lengths[texts], starts)
    most = np.maximum(1, _LARGEST // (costs.copies * widths))
    pieces = -(-counts // most)
    if (pieces > 1).any():
        further = [starts[i] + counts[i] * np.arange(1, pieces[i]) // pieces[i] for i in np.flatnonzero(pieces > 1)]
        starts = np.sort(np.concatenate([starts, *further]))
        counts = np.diff(np.append(starts, len(texts)))
    return starts, counts


def _groups(contexts: np.ndarray, lengths: np.ndarray, common: int, costs: Costs) -> Iterator[tuple[int, int, int]]:
    """Splits contexts into groups; yields the start, number of rows and maximum tokens of a row of each."""
    ways = contexts.shape[1] * costs.copies
    widths = costs.extra_tokens + lengths[contexts].max(axis=1)
    longest_left = np.maximum.accumulate(widths[::-1])[::-1]
    start = rows = longest = 0
    while start < len(contexts):
        width, left = int(longest_left[start]), len(contexts) - start
        fitting = costs.rows(width, left * (1 + ways), costs.prompt_tokens + common)
        fitting = max(1, min(fitting, _LARGEST // (ways * width), left))
        if fitting >= MORE_ROWS * rows:
            rows, longest = fitting, width
        yield start, rows, longest
        start += rows


def _plan(
    contexts: np.ndarray, lengths: np.ndarray, unused: np.ndarray, common: int, costs: Costs
) -> tuple[BatchPlan, float]:
    """Plans each group of contexts, of shape [contexts, continuations], as a batch; also returns the plan's cost."""
    copies, prompts, count = costs.copies, costs.prompt_tokens, contexts.shape[1]
    starts, tokens, real_tokens, saved, shapes = [0], [], [], [], []
    for start, rows, longest in _groups(contexts, lengths, common, costs):
        own = contexts[start : start + rows]
        shared, forwards = int(unused[own].min()), own.size * copies
        width = costs.extra_tokens + int(lengths[own].max())
        whole = copies * int((costs.extra_tokens + lengths[own]).sum())
        # rows without a context of their own are also sent
        sent = rows * (shared - common + count * copies * (width - prompts - shared))
        starts.append(starts[-1] + own.size)
        tokens.append(sent)
        real_tokens.append(len(own) * (shared - common) + whole - forwards * (prompts + shared))
        saved.append(forwards * width - sent)
        shapes.append(SharedPrefix(prompts + shared, prompts + common, rows, longest))
    plan = BatchPlan(
        order=np.arange(starts[-1]),
        starts=np.array(starts, dtype=np.int64),
        tokens=np.array(tokens, dtype=np.int64),
        real_tokens=np.array(real_tokens, dtype=np.int64),
        extra_tokens=costs.extra_tokens,
        shared=SharedPrefixes(np.array(shapes, dtype=np.int64), np.array(saved, dtype=np.int64), costs.cache_tokens),
    )
    read = CACHE_READING * count * copies * sum(shape.rows * shape.tokens for shape in shapes)
    requests = REQUEST_OVERHEAD * (1 + count * copies) * len(plan)
    most_rows, prefix = max(shape.rows for shape in shapes), prompts + common
    openings = costs.of_openings(len(plan), most_rows, prefix) if prefix else 0.0
    return plan, sum(tokens) + requests + read + openings


def plan_contexts(
    texts: np.ndarray, continues_context: np.ndarray, lengths: np.ndarray, unused: np.ndarray, common: int, costs: Costs
) -> list[tuple[BatchPlan, np.ndarray]]:
    """Plans the contexts that are cheaper to send once and continue repeatedly.

    Returns plans for some of the texts, with one batch per group; and their positions, int64 of shape [k].

    Args:
        texts: positions of the texts, ascending, int64 of shape [m]; all continuations of a context follow it.
        continues_context: whether each text has the context of the text before it, bool of shape [n].
        lengths: tokens of each text without prompts, int64 of shape [n].
        unused: tokens at the start of each text, without prompts, whose outputs are not needed, int64 of shape [n].
        common: tokens that all of these texts begin with, without prompts; 0 if the alternative is plain forwards.
        costs: cost estimates.
    """
    parts = []
    starts, counts = _contexts(texts, continues_context, lengths, costs)
    is_used = (counts * costs.copies > 1) & (unused[texts[starts]] > common)
    for count in np.unique(counts[is_used]):
        begins = starts[is_used & (counts == count)]
        begins = begins[np.argsort(-unused[texts[begins]], kind="stable")]
        contexts = texts[begins[:, np.newaxis] + np.arange(count)]
        plan, cost = _plan(contexts, lengths, unused, common, costs)
        own = contexts.ravel()
        tokens = int(lengths[own].sum())
        otherwise = costs.of_turns(len(own), tokens, common) if common else costs.of_forwards(len(own), tokens)
        if cost < WORTHWHILE * otherwise:
            parts.append((plan, own))
    return parts
