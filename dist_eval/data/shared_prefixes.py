"""Plans texts with a common prefix, so that the prefix is computed once.

Several cache rows hold a copy of the prefix each, and one batch after the other continues them. If contexts have
several continuations each, a row holds one context, and one continuation after the other follows it. The plan depends
only on the tokens, so a batch is computed in the same way, with the same bits, on any rank and after any restart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dist_eval.data.plan import BatchPlan, SharedPrefix, SharedPrefixes, join_plans, plan_batches
from dist_eval.data.prefix_costs import MORE_ROWS, Costs
from dist_eval.data.shared_contexts import plan_contexts

_LONGEST = 2048  # longest text that Petals' servers cache by default

_Part = tuple[BatchPlan, np.ndarray]  # A plan for some of the texts, and their positions


@dataclass(frozen=True)
class Prefixes:
    """The tokens that each text shares with the text before it."""

    # number of shared tokens; negative for a text that was truncated on the left, which is skipped. Integers of shape
    # [n].
    common: np.ndarray
    unused: np.ndarray  # tokens at the start of each text whose outputs are not needed, integers of shape [n]
    prefix_of: Callable[[int, int], np.ndarray]  # returns the first tokens of a text, by its position and their number


class CommonTokens:
    """Counts the tokens that each text shares with the one before it."""

    def __init__(self) -> None:
        self._before = np.empty(0, dtype=np.int32)

    def add(self, tokens: np.ndarray) -> int:
        """Returns the number of tokens that a text shares with the one before it, given its token ids."""
        size = min(len(tokens), len(self._before))
        differs = np.flatnonzero(tokens[:size] != self._before[:size])
        self._before = tokens
        return int(differs[0]) if len(differs) else size


def plan_with_shared_prefixes(
    lengths: np.ndarray,
    *,
    token_budget: int,
    cache_tokens: int,
    prefixes: Prefixes | None = None,
    extra_tokens: int = 0,
    prompt_tokens: int = 0,
    copies: int = 1,
    rows: np.ndarray | None = None,
) -> BatchPlan:
    """Plans batches as `plan_batches` does, and shares prefixes where that is cheaper.

    Shared prefixes come first. Without any, the plan equals that of `plan_batches`.

    Args:
        lengths: tokens of each example, at least 1, integers of shape [n].
        token_budget: see `plan_batches`.
        cache_tokens: maximum number of tokens of the rows that are continued at a time; 0 to share nothing.
        prefixes: the tokens that texts share; None if unknown.
        extra_tokens: see `plan_batches`.
        prompt_tokens: the part of `extra_tokens` that is prompts, which all examples begin with.
        copies: see `plan_batches`.
        rows: see `plan_batches`.
    """
    plan_plain = partial(plan_batches, token_budget=token_budget, extra_tokens=extra_tokens, copies=copies)
    if not cache_tokens:
        return plan_plain(lengths, rows=rows)
    lengths = np.asarray(lengths, dtype=np.int64)
    costs = Costs(extra_tokens, prompt_tokens, copies, cache_tokens)
    places = np.flatnonzero(lengths + extra_tokens <= _LONGEST)
    parts: list[_Part] = []
    if prefixes is not None:
        parts = _parts(lengths, prefixes, places[prefixes.common[places] >= 0], costs)
    elif prompt_tokens and costs.saved(len(places), int(lengths[places].sum()), 0) > 0:
        parts = [_plan_in_turn(lengths, places, 0, costs)]
    if not parts:
        return plan_plain(lengths, rows=rows)
    rest = np.setdiff1d(np.arange(len(lengths)), np.concatenate([places for _, places in parts]))
    plan = join_plans([*parts, (plan_plain(lengths[rest]), rest)])
    return plan if rows is None else replace(plan, order=rows[plan.order])


def _parts(lengths: np.ndarray, prefixes: Prefixes, places: np.ndarray, costs: Costs) -> list[_Part]:
    lengths, unused = lengths[places], prefixes.unused[places]
    least = np.minimum(unused, np.roll(unused, 1))
    least = np.minimum(least, _common_with_place_before(prefixes.common, places))
    continues_context = np.zeros(len(places), dtype=bool)  # whether a text has the context of the text before it
    if costs.copies == 1:
        continues_context[1:] = (least[1:] == unused[1:]) & (unused[1:] == unused[:-1])
    families: dict[bytes, list[np.ndarray]] = {}
    rest = np.ones(len(places), dtype=bool)
    for start, end, size in _worthwhile_runs(_between_contexts(least, continues_context), lengths, costs):
        key = prefixes.prefix_of(int(places[start]), size).tobytes()
        families.setdefault(key, []).append(np.arange(start, end))
        rest[start:end] = False
    parts: list[_Part] = []
    for key, runs in (*families.items(), (b"", [np.flatnonzero(rest)])):
        common, texts = len(key) // np.dtype(np.int32).itemsize, np.concatenate(runs)
        for part in plan_contexts(texts, continues_context, lengths, unused, common, costs):
            parts.append(part)
            texts = np.setdiff1d(texts, part[1])
        if common and costs.saved(len(texts), int(lengths[texts].sum()), common) > 0:
            parts.append(_plan_in_turn(lengths, texts, common, costs))
    return [(plan, places[texts]) for plan, texts in parts]


def _plan_in_turn(lengths: np.ndarray, texts: np.ndarray, common: int, costs: Costs) -> _Part:
    """Plans texts that continue a common prefix in turn; `common` is its length without prompts."""
    copies, prefix = costs.copies, costs.prompt_tokens + common
    texts = texts[np.argsort(-lengths[texts], kind="stable")]
    widths, starts, shapes = costs.extra_tokens + lengths[texts], [0], []
    rows = longest = 0
    while starts[-1] < len(texts):
        width, left = int(widths[starts[-1]]), len(texts) - starts[-1]
        fitting = costs.rows(width, left * copies, prefix)
        fitting -= fitting % copies if fitting > copies else 0
        if fitting >= MORE_ROWS * rows:
            rows, longest = fitting, width
        starts.append(starts[-1] + min(left, max(1, rows // copies)))
        shapes.append(SharedPrefix(prefix, prefix, rows, longest))
    sizes = np.diff(starts)
    saved = prefix * copies * sizes
    plan = BatchPlan(
        order=np.arange(len(texts)),
        starts=np.array(starts, dtype=np.int64),
        tokens=copies * sizes * widths[starts[:-1]] - saved,
        real_tokens=copies * np.add.reduceat(widths, starts[:-1]) - saved,
        extra_tokens=costs.extra_tokens,
        shared=SharedPrefixes(np.array(shapes, dtype=np.int64), saved, costs.cache_tokens),
    )
    return plan, texts


def _between_contexts(least: np.ndarray, continues_context: np.ndarray) -> np.ndarray:
    """Returns the tokens that texts share with the one before; within a context, those that it shares with others."""
    starts = np.flatnonzero(~continues_context)
    borders = np.append(least[starts], 0)
    context = np.cumsum(~continues_context) - 1
    return np.where(continues_context, np.maximum(borders[context], borders[context + 1]), least)


def _common_with_place_before(common: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns the tokens that each selected text shares with the previous selected one."""
    if not len(places):
        return common[:0]
    known = np.where(common < 0, np.iinfo(common.dtype).max, common)[: places[-1] + 1]
    return np.minimum.reduceat(known, np.concatenate([[0], places[:-1] + 1]))


@dataclass
class _Run:
    """A run of texts with a common prefix, and the best way to share parts of it."""

    common: int
    start: int
    saved: float = 0.0
    parts: list[tuple[int, int, int]] = field(default_factory=list)

    def take(self, other: _Run) -> None:
        self.saved += other.saved
        self.parts += other.parts


def _worthwhile_runs(common: np.ndarray, lengths: np.ndarray, costs: Costs) -> list[tuple[int, int, int]]:
    """Finds the disjoint runs of texts whose common prefixes save most: start, end, and number of common tokens.

    Runs with a longer prefix lie within runs with a shorter one, so each run is used either whole or in its best parts.
    """
    sums = np.concatenate([[0], np.cumsum(lengths)])
    stack = [_Run(0, 0)]

    def close(run: _Run, end: int) -> None:
        saved = costs.saved(end - run.start, int(sums[end] - sums[run.start]), run.common) if run.common else 0.0
        if saved > run.saved:
            run.saved, run.parts = saved, [(run.start, end, run.common)]

    for place, shared in enumerate([*common[1:].tolist(), 0], start=1):
        start, within = place - 1, None
        while stack[-1].common > shared:
            run = stack.pop()
            close(run, place)
            start, within = run.start, run
            if stack[-1].common >= shared:
                stack[-1].take(run)
                within = None
        if stack[-1].common < shared:
            stack.append(_Run(shared, start))
            if within is not None:
                stack[-1].take(within)
    return stack[0].parts
