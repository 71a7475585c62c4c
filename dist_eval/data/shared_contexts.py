"""Contexts that are continued in several ways each, such as a question with its answers: groups that share a session.

Each row of the session holds one context. A group is a batch: first its contexts are sent, then one continuation of
each after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_eval.data.plan import Held, Plan, SessionShape
from dist_eval.data.session_costs import CACHE_READING, MORE_ROWS, REQUEST_OVERHEAD, WORTHWHILE, Costs

_LARGEST = 4096
"""Most tokens of the texts in a group, padded: the client holds all of them at once."""


def plan_contexts(
    texts: np.ndarray, goes_on: np.ndarray, lengths: np.ndarray, unused: np.ndarray, common: int, costs: Costs
) -> list[tuple[Plan, np.ndarray]]:
    """Plans the contexts that are cheaper to send once, and to continue in one way after the other.

    Args:
        texts: positions of the texts, ascending, int64 of shape [m]; all continuations of a context follow it.
        goes_on: whether each text has the context of the text before, bool of shape [n].
        lengths: tokens of each text without prompts, int64 of shape [n].
        unused: tokens at the beginning of each text, without prompts, whose outputs nobody needs, int64 of shape [n].
        common: tokens that all of these texts begin with, without prompts; 0 if they would be plain forwards.
        costs: estimates the ways to send them.

    Returns:
        Plans for some of the texts, each batch of which is a group; and their positions, int64 of shape [k].
    """
    by_ways: dict[int, list[np.ndarray]] = {}
    for own in np.split(texts, np.flatnonzero(~goes_on[texts])[1:]) if len(texts) else ():
        if len(own) * costs.copies > 1 and unused[own[0]] > common:
            by_ways.setdefault(len(own), []).append(own)
    parts = []
    for contexts in by_ways.values():
        contexts.sort(key=lambda own: -unused[own[0]])  # the sort is stable
        plan = _plan(list(_groups(contexts, lengths, unused, common, costs)), lengths, unused, common, costs)
        own = np.concatenate(contexts)
        count, tokens = len(own), int(lengths[own].sum())
        otherwise = costs.of_turns(count, tokens, common) if common else costs.of_forwards(count, tokens)
        if _cost(plan, len(contexts[0]) * costs.copies, common, costs) < WORTHWHILE * otherwise:
            parts.append((plan, own))
    return parts


def _groups(
    contexts: list[np.ndarray], lengths: np.ndarray, unused: np.ndarray, common: int, costs: Costs
) -> Iterator[tuple[list[np.ndarray], int, int]]:
    """Splits contexts into groups; yields each with the rows of its session and the most tokens of one."""
    ways = len(contexts[0]) * costs.copies
    widths = costs.prefix + np.array([lengths[own].max() for own in contexts])
    longest_left = np.maximum.accumulate(widths[::-1])[::-1]
    start = rows = longest = 0
    while start < len(contexts):
        width = int(longest_left[start])
        beginning = costs.prompt_tokens + common
        fitting = costs.rows(width, (len(contexts) - start) * (1 + ways), beginning)
        fitting = max(1, min(fitting, _LARGEST // (ways * width)))
        if fitting >= MORE_ROWS * rows:
            rows, longest = fitting, width
        yield contexts[start : start + rows], rows, longest
        start += rows


def _plan(
    groups: list[tuple[list[np.ndarray], int, int]],
    lengths: np.ndarray,
    unused: np.ndarray,
    common: int,
    costs: Costs,
) -> Plan:
    """Makes each group a batch; the order is that of the groups."""
    copies, prompts = costs.copies, costs.prompt_tokens
    starts, tokens, real_tokens, saved, shapes = [0], [], [], [], []
    for contexts, rows, longest in groups:
        own = np.concatenate(contexts)
        shared, forwards = int(unused[own].min()), len(own) * copies
        once = len(contexts) * (shared - common) - forwards * (prompts + shared)
        padded = forwards * (costs.prefix + int(lengths[own].max()))
        starts.append(starts[-1] + len(own))
        tokens.append(once + padded)
        real_tokens.append(once + copies * int((costs.prefix + lengths[own]).sum()))
        saved.append(-once)
        shapes.append(SessionShape(prompts + shared, prompts + common, rows, longest))
    return Plan(
        order=np.arange(starts[-1]),
        starts=np.array(starts, dtype=np.int64),
        tokens=np.array(tokens, dtype=np.int64),
        real_tokens=np.array(real_tokens, dtype=np.int64),
        prefix=costs.prefix,
        held=Held(np.array(shapes, dtype=np.int64), np.array(saved, dtype=np.int64), costs.session_tokens),
    )


def _cost(plan: Plan, ways: int, common: int, costs: Costs) -> float:
    assert plan.held is not None
    shared, _, rows, _ = plan.held.shapes.T
    requests = REQUEST_OVERHEAD * (1 + ways) * len(plan) + CACHE_READING * ways * float((rows * shared).sum())
    beginning = costs.prompt_tokens + common
    openings = costs.of_openings(len(plan), int(rows.max()), beginning) if beginning else 0.0
    return float(plan.tokens.sum()) + requests + openings
