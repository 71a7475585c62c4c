"""Texts that begin alike: which of them are sent in sessions, where servers compute their common beginning once.

A session holds a number of rows, each with its own copy of the common beginning, and continues them with one batch
after the other. All of it is decided from the tokens alone, before anything is sent: so a batch is computed in the same
way on any rank, after any restart, and has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from dist_eval.data.plan import Plan, join_plans, plan_batches

SESSION_TOKENS = 1024
"""Tokens that a session may hold, of all its texts; one of a single text may hold more. Petals' servers have memory for
4096 by default, or 16384 with grouped-query attention. More rows would hardly be faster (see `benchmarks.prefix`), and
what is left has room for further sessions, which keep other servers busy."""

_LONGEST = 2048
"""Longest text that Petals' servers take in a session by default."""

REQUEST_OVERHEAD = 80.0
"""What a server does for a request besides its tokens, in tokens (see `benchmarks.prefix`)."""

CACHE_READING = 0.02
"""What attending to a token in a cache costs, in tokens that are computed anew (see `benchmarks.prefix`)."""

_SESSIONS = 4
"""Sessions that a run may open, each of which computes the beginning."""

_WORTHWHILE = 0.9
"""Sessions have to cost less than this share of plain forwards: what is estimated may be wrong."""


@dataclass(frozen=True)
class Beginnings:
    """What texts have in common with the text before.

    Attributes:
        common: tokens that each text shares with the one before it; negative for a text that was cut from the left,
            which is skipped. Integers of shape [n].
        unused: tokens at the beginning of each text whose outputs nobody needs, integers of shape [n].
        prefix_of: returns the first tokens of a text, by its position and their number.
    """

    common: np.ndarray
    unused: np.ndarray
    prefix_of: Callable[[int, int], np.ndarray]


class CommonTokens:
    """Counts the tokens that each text shares with the one before it."""

    def __init__(self) -> None:
        self._before = np.empty(0, dtype=np.int32)

    def add(self, tokens: np.ndarray) -> int:
        """Returns how many tokens a text shares with the one before it, from its token ids."""
        size = min(len(tokens), len(self._before))
        differs = np.flatnonzero(tokens[:size] != self._before[:size])
        self._before = tokens
        return int(differs[0]) if len(differs) else size


def rows_in_session(length: int, session_tokens: int) -> int:
    """Returns how many texts of a length, prompts included, a session holds; at least 1."""
    return max(1, session_tokens // length)


def plan_with_sessions(
    lengths: np.ndarray,
    *,
    token_budget: int,
    session_tokens: int,
    beginnings: Beginnings | None = None,
    prefix: int = 0,
    prompt_tokens: int = 0,
    copies: int = 1,
    rows: np.ndarray | None = None,
) -> Plan:
    """Plans batches as `plan_batches` does, but for texts that are cheaper to send in sessions.

    Args:
        lengths: tokens of each example, at least 1, integers of shape [n].
        token_budget: see `plan_batches`.
        session_tokens: tokens that a session may hold; 0 for no sessions.
        beginnings: what the texts have in common; None if that is unknown.
        prefix: see `plan_batches`.
        prompt_tokens: those of `prefix` that are prompts, which all examples begin with.
        copies: see `plan_batches`.
        rows: see `plan_batches`.

    Returns:
        The plan: batches of sessions come first. Without any it equals that of `plan_batches`.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    plan_plain = partial(plan_batches, token_budget=token_budget, prefix=prefix, copies=copies)
    costs = _Costs(prefix, prompt_tokens, copies, session_tokens)
    groups: dict[bytes, list[np.ndarray]] = {}
    if session_tokens and beginnings is not None:
        places = np.flatnonzero((beginnings.common >= 0) & (lengths + prefix <= _LONGEST))
        unused = beginnings.unused[places]
        least = np.minimum(unused, np.roll(unused, 1))
        least = np.minimum(least, _common_with_place_before(beginnings.common, places))
        for start, end, size in _worthwhile_runs(least, lengths[places], costs):
            key = beginnings.prefix_of(int(places[start]), size).tobytes()
            groups.setdefault(key, []).append(places[start:end])
    elif session_tokens and prompt_tokens:
        places = np.flatnonzero(lengths + prefix <= _LONGEST)
        shapes = {rows_in_session(prefix + int(length), session_tokens) for length in np.unique(lengths[places])}
        if costs.saved(len(places), int(lengths[places].sum()), 0, len(shapes)) > 0:
            groups[b""] = [places]
    if not groups:
        return plan_plain(lengths, rows=rows)
    parts = []
    for key, runs in groups.items():
        places = np.concatenate(runs)
        common = prompt_tokens + len(key) // np.dtype(np.int32).itemsize
        own = plan_batches(lengths[places], token_budget=session_tokens, prefix=prefix, copies=copies)
        once, shared = common * copies * own.sizes, np.full(len(own), common, dtype=np.int64)
        own = replace(own, tokens=own.tokens - once, real_tokens=own.real_tokens - once, shared=shared)
        longest = max(session_tokens, prefix + int(lengths[places].max()))
        parts.append((replace(own, session_tokens=session_tokens, longest_session=longest), places))
    rest = np.setdiff1d(np.arange(len(lengths)), np.concatenate([places for _, places in parts]))
    plan = join_plans([*parts, (plan_plain(lengths[rest]), rest)])
    return plan if rows is None else replace(plan, order=rows[plan.order])


def _common_with_place_before(common: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns the tokens that some texts share with the one before among them, for `Beginnings.common` of all texts."""
    if not len(places):
        return common[:0]
    known = np.where(common < 0, np.iinfo(common.dtype).max, common)[: places[-1] + 1]
    return np.minimum.reduceat(known, np.concatenate([[0], places[:-1] + 1]))


@dataclass(frozen=True)
class _Costs:
    prefix: int
    prompt_tokens: int
    copies: int
    session_tokens: int

    def saved(self, count: int, tokens: int, common: int, shapes: int = 1) -> float:
        """Estimates what sessions save, in tokens; negative if it is not worth it.

        Args:
            count: number of texts.
            tokens: of all of them, without prompts.
            common: tokens that all of them begin with, without prompts.
            shapes: numbers of rows for which sessions have to be opened.
        """
        forwards, beginning = count * self.copies, self.prompt_tokens + common
        tokens = tokens * self.copies + forwards * self.prefix
        if not forwards:
            return 0.0
        rows = rows_in_session(-(-tokens // forwards), self.session_tokens)
        plain = tokens * (1 + REQUEST_OVERHEAD / 1024)
        steps = -(-forwards // rows)
        each = REQUEST_OVERHEAD + CACHE_READING * rows * beginning
        sessions = min(steps, _SESSIONS * shapes) * (rows * beginning + REQUEST_OVERHEAD)
        return _WORTHWHILE * plain - (tokens - forwards * beginning + steps * each + sessions)


@dataclass
class _Run:
    """A run of texts with a common beginning, and the best that can be made of parts of it."""

    common: int
    start: int
    saved: float = 0.0
    parts: list[tuple[int, int, int]] = field(default_factory=list)

    def take(self, other: _Run) -> None:
        self.saved += other.saved
        self.parts += other.parts


def _worthwhile_runs(common: np.ndarray, lengths: np.ndarray, costs: _Costs) -> list[tuple[int, int, int]]:
    """Finds the disjoint runs of texts whose common beginnings save most: start, end, and number of common tokens.

    Runs with a longer beginning lie within those with a shorter one: of each, either itself is taken or the best of
    what lies within.
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
