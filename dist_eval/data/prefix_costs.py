"""Estimated costs of sending texts with and without a shared prefix, in tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

CACHE_TOKENS = 1024
"""Tokens of a batch of generated texts, and of a plain forward that replaces a shared prefix."""

REQUEST_OVERHEAD = 80.0
"""Cost of a request besides its tokens, in tokens (see `benchmarks.prefix`)."""

CACHE_READING = 0.02
"""Cost of attending to a cached token, in tokens (see `benchmarks.prefix`)."""

OPENINGS = 6
"""Number of times that a run computes a shared prefix: once per batch in flight."""

MORE_ROWS = 2
"""Shorter texts get new cache rows once this many times as many rows fit into the caches."""

WORTHWHILE = 0.9
"""Sharing must cost less than this fraction of the alternative, because estimates may be wrong."""


def rows_in_cache(length: int, cache_tokens: int) -> int:
    """Returns the number of texts of a length, including prompts, that fit into caches; at least 1."""
    return max(1, cache_tokens // length)


@dataclass(frozen=True)
class Costs:
    """Costs of ways to send texts."""

    extra_tokens: int  # see `dist_eval.data.plan.plan_batches`
    prompt_tokens: int  # the part of `extra_tokens` that is prompts, which all texts begin with
    copies: int  # see `dist_eval.data.plan.plan_batches`
    cache_tokens: int  # maximum number of cached tokens

    def of_forwards(self, count: int, tokens: int) -> float:
        """Estimates the cost of plain forwards."""
        return self._sent(count, tokens) * (1 + REQUEST_OVERHEAD / 1024)

    def rows(self, longest: int, requests: int, prefix: int) -> int:
        """Returns the cheapest number of rows: more rows need fewer requests, but compute the prefix more often.

        With r rows, the cost is requests / r * REQUEST_OVERHEAD + OPENINGS * r * prefix.
        """
        most = rows_in_cache(longest, self.cache_tokens)
        if prefix:
            most = min(most, round(math.sqrt(requests * REQUEST_OVERHEAD / (OPENINGS * prefix))))
        return max(1, most)

    def of_turns(self, count: int, tokens: int, common: int) -> float:
        """Estimates the cost of a cached prefix that one text after the other continues."""
        sent, forwards, prefix = self._sent(count, tokens), count * self.copies, self.prompt_tokens + common
        rows = self.rows(-(-sent // forwards), forwards, prefix)
        steps = -(-forwards // rows)
        each = REQUEST_OVERHEAD + CACHE_READING * rows * prefix
        return sent - forwards * prefix + steps * each + self.of_openings(steps, rows, prefix)

    def of_openings(self, steps: int, rows: int, prefix: int) -> float:
        """Estimates the cost of computing the prefix for `steps` steps."""
        return min(steps, OPENINGS) * (rows * prefix + REQUEST_OVERHEAD)

    def saved(self, count: int, tokens: int, common: int) -> float:
        """Estimates the savings of sharing; negative if it does not pay (see `of_turns` for the arguments)."""
        if not count:
            return 0.0
        return WORTHWHILE * self.of_forwards(count, tokens) - self.of_turns(count, tokens, common)

    def _sent(self, count: int, tokens: int) -> int:
        return self.copies * (tokens + count * self.extra_tokens)
