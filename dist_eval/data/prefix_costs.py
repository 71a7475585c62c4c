"""Estimated costs of sending texts with and without a shared prefix, in tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

CACHE_TOKENS = 1024
"""Tokens of a batch of generated texts, and of a plain forward of texts that were to share a beginning."""

REQUEST_OVERHEAD = 80.0
"""What a server does for a request besides its tokens, in tokens (see `benchmarks.prefix`)."""

CACHE_READING = 0.02
"""What attending to a token in a cache costs, in tokens that are computed anew (see `benchmarks.prefix`)."""

OPENINGS = 6
"""How often a run computes a shared beginning: that many batches are in flight at a time."""

MORE_ROWS = 2
"""Shorter texts are continued in other rows once so many times as many rows fit into the caches."""

WORTHWHILE = 0.9
"""Sharing has to cost less than this share of the alternative: what is estimated may be wrong."""


def rows_in_cache(length: int, cache_tokens: int) -> int:
    """Returns how many texts of a length, prompts included, caches hold; at least 1."""
    return max(1, cache_tokens // length)


@dataclass(frozen=True)
class Costs:
    """What texts cost, by the way that they are sent."""

    extra_tokens: int  # see `dist_eval.data.plan.plan_batches`
    prompt_tokens: int  # those of `extra_tokens` that are prompts, which all texts begin with
    copies: int  # see `dist_eval.data.plan.plan_batches`
    cache_tokens: int  # tokens that caches may hold

    def of_forwards(self, count: int, tokens: int) -> float:
        """Estimates plain forwards."""
        return self._sent(count, tokens) * (1 + REQUEST_OVERHEAD / 1024)

    def rows(self, longest: int, requests: int, beginning: int) -> int:
        """Returns how many rows cost least: more of them take fewer requests, but compute the beginning more often.

        With r rows, that is requests / r * REQUEST_OVERHEAD + OPENINGS * r * beginning.
        """
        most = rows_in_cache(longest, self.cache_tokens)
        if beginning:
            most = min(most, round(math.sqrt(requests * REQUEST_OVERHEAD / (OPENINGS * beginning))))
        return max(1, most)

    def of_turns(self, count: int, tokens: int, common: int) -> float:
        """Estimates caches that hold a common beginning, which is continued by one text after the other."""
        sent, forwards, beginning = self._sent(count, tokens), count * self.copies, self.prompt_tokens + common
        rows = self.rows(-(-sent // forwards), forwards, beginning)
        steps = -(-forwards // rows)
        each = REQUEST_OVERHEAD + CACHE_READING * rows * beginning
        return sent - forwards * beginning + steps * each + self.of_openings(steps, rows, beginning)

    def of_openings(self, steps: int, rows: int, beginning: int) -> float:
        """Estimates what it costs to compute the beginning for so many steps."""
        return min(steps, OPENINGS) * (rows * beginning + REQUEST_OVERHEAD)

    def saved(self, count: int, tokens: int, common: int) -> float:
        """Estimates what sharing saves; negative if it is not worth it (see `of_turns` for the arguments)."""
        if not count:
            return 0.0
        return WORTHWHILE * self.of_forwards(count, tokens) - self.of_turns(count, tokens, common)

    def _sent(self, count: int, tokens: int) -> int:
        return self.copies * (tokens + count * self.extra_tokens)
