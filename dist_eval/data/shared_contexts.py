"""Contexts that are continued in several ways each, such as a question with its answers: groups that share a session.

Each row of the session holds one context. A group is a batch: first its contexts are sent, then one continuation of
each after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dist_eval.data.plan import Held, Plan
from dist_eval.data.session_costs import CACHE_READING, REQUEST_OVERHEAD, WORTHWHILE, Costs, rows_in_session

_LARGEST = 4096
"""Most tokens of the texts in a group, padded: the client holds all of them at once."""


@dataclass(frozen=True)
class _Group:
    """Contexts with equally many continuations.

    Attributes:
        texts: positions of the texts, int64 of shape [n].
        contexts: number of contexts.
        ways: forwards of each.
        width: tokens of the longest text, prompts included.
        shared: tokens at the beginning of each text, prompts included, that are sent once.
        tokens: of all forwards, prompts included, without padding.
    """

    texts: np.ndarray
    contexts: int
    ways: int
    width: int
    shared: int
    tokens: int

    def sent(self, common: int, *, padded: bool) -> int:
        """Returns how many tokens are sent, besides those that all contexts have in common."""
        forwards = self.contexts * self.ways
        tokens = forwards * self.width if padded else self.tokens
        return self.contexts * (self.shared - common) + tokens - forwards * self.shared


def plan_contexts(
    texts: np.ndarray, goes_on: np.ndarray, lengths: np.ndarray, unused: np.ndarray, common: int, costs: Costs
) -> tuple[Plan, np.ndarray] | None:
    """Plans the contexts that are cheaper to send once, and to continue in one way after the other.

    Args:
        texts: positions of the texts, ascending, int64 of shape [m]; all continuations of a context follow it.
        goes_on: whether each text has the context of the text before, bool of shape [n].
        lengths: tokens of each text without prompts, int64 of shape [n].
        unused: tokens at the beginning of each text, without prompts, whose outputs nobody needs, int64 of shape [n].
        common: tokens that all of these texts begin with, without prompts; 0 if they would be plain forwards.
        costs: estimates the ways to send them.

    Returns:
        A plan for some of the texts, each batch of which is a group; and their positions, int64 of shape [k]. None if
        there are none.
    """
    groups = [
        group
        for group in _groups(texts, goes_on, lengths, unused, common, costs)
        if _is_worthwhile(group, lengths, common, costs)
    ]
    if not groups:
        return None
    beginning = costs.prompt_tokens + common
    positions = np.concatenate([group.texts for group in groups])
    tokens = np.array([group.sent(beginning, padded=True) for group in groups], dtype=np.int64)
    plain = np.array([group.contexts * group.ways * group.width for group in groups], dtype=np.int64)
    plan = Plan(
        order=np.arange(len(positions)),
        starts=np.cumsum([0, *(len(group.texts) for group in groups)]),
        tokens=tokens,
        real_tokens=np.array([group.sent(beginning, padded=False) for group in groups], dtype=np.int64),
        prefix=costs.prefix,
        held=Held(
            shared=np.array([group.shared for group in groups], dtype=np.int64),
            common=np.full(len(groups), beginning, dtype=np.int64),
            saved=plain - tokens,
            session_tokens=costs.session_tokens,
            longest=max(costs.session_tokens, *(group.width for group in groups)),
        ),
    )
    return plan, positions


def _groups(
    texts: np.ndarray, goes_on: np.ndarray, lengths: np.ndarray, unused: np.ndarray, common: int, costs: Costs
) -> list[_Group]:
    """Groups contexts of similar length, as many as a session holds."""
    if not len(texts):
        return []
    several = [
        own
        for own in np.split(texts, np.flatnonzero(~goes_on[texts])[1:])
        if len(own) * costs.copies > 1 and unused[own[0]] > common
    ]
    several.sort(key=lambda own: (len(own), unused[own[0]]), reverse=True)  # the sort is stable
    groups: list[_Group] = []
    members: list[np.ndarray] = []
    width = 0

    def close() -> None:
        own = np.concatenate(members)
        groups.append(
            _Group(
                texts=own,
                contexts=len(members),
                ways=len(members[0]) * costs.copies,
                width=width,
                shared=costs.prompt_tokens + int(unused[own].min()),
                tokens=costs.copies * int((lengths[own] + costs.prefix).sum()),
            )
        )

    for own in several:
        wider = max(width, costs.prefix + int(lengths[own].max()))
        ways, count = len(own) * costs.copies, len(members) + 1
        fits = count <= rows_in_session(wider, costs.session_tokens) and count * ways * wider <= _LARGEST
        if members and not (fits and len(own) == len(members[0])):
            close()
            members, wider = [], costs.prefix + int(lengths[own].max())
        members, width = [*members, own], wider
    if members:
        close()
    return groups


def _is_worthwhile(group: _Group, lengths: np.ndarray, common: int, costs: Costs) -> bool:
    each = REQUEST_OVERHEAD + CACHE_READING * group.contexts * group.shared
    cost = group.sent(costs.prompt_tokens + common, padded=True) + REQUEST_OVERHEAD + group.ways * each
    count, tokens = len(group.texts), int(lengths[group.texts].sum())
    otherwise = costs.of_steps(count, tokens, common) if common else costs.of_forwards(count, tokens)
    return cost < WORTHWHILE * otherwise
