"""What sessions and plain forwards cost, in tokens that servers compute."""

from __future__ import annotations

import math
from dataclasses import dataclass

SESSION_TOKENS = 1024
"""Tokens of a batch of generated texts, and of a forward that takes a session's place."""

REQUEST_OVERHEAD = 80.0
"""What a server does for a request besides its tokens, in tokens (see `benchmarks.prefix`)."""

CACHE_READING = 0.02
"""What attending to a token in a cache costs, in tokens that are computed anew (see `benchmarks.prefix`)."""

SESSIONS = 6
"""Sessions that a run may open, each of which computes the beginning."""

MORE_ROWS = 2
"""Sessions of another shape are opened for shorter texts once so many times as many rows fit into them."""

WORTHWHILE = 0.9
"""Sessions have to cost less than this share of the alternative: what is estimated may be wrong."""


def rows_in_session(length: int, session_tokens: int) -> int:
    """Returns how many texts of a length, prompts included, a session holds; at least 1."""
    return max(1, session_tokens // length)


@dataclass(frozen=True)
class Costs:
    """What texts cost, by the way that they are sent."""

    prefix: int  # see `dist_eval.data.plan.plan_batches`
    prompt_tokens: int  # those of `prefix` that are prompts, which all texts begin with
    copies: int  # see `dist_eval.data.plan.plan_batches`
    session_tokens: int  # tokens that a session may hold

    def of_forwards(self, count: int, tokens: int) -> float:
        """Estimates plain forwards."""
        return self._sent(count, tokens) * (1 + REQUEST_OVERHEAD / 1024)

    def rows(self, longest: int, requests: int, beginning: int) -> int:
        """Returns how many rows cost least: more of them take fewer requests, but compute the beginning more often.

        With r rows, that is requests / r * REQUEST_OVERHEAD + SESSIONS * r * beginning.
        """
        most = rows_in_session(longest, self.session_tokens)
        if beginning:
            most = min(most, round(math.sqrt(requests * REQUEST_OVERHEAD / (SESSIONS * beginning))))
        return max(1, most)

    def of_turns(self, count: int, tokens: int, common: int) -> float:
        """Estimates sessions that hold a common beginning, and continue it by one text after the other."""
        sent, forwards, beginning = self._sent(count, tokens), count * self.copies, self.prompt_tokens + common
        rows = self.rows(-(-sent // forwards), forwards, beginning)
        steps = -(-forwards // rows)
        each = REQUEST_OVERHEAD + CACHE_READING * rows * beginning
        return sent - forwards * beginning + steps * each + self.of_openings(steps, rows, beginning)

    def of_openings(self, steps: int, rows: int, beginning: int) -> float:
        """Estimates what it costs to open the sessions for so many steps."""
        return min(steps, SESSIONS) * (rows * beginning + REQUEST_OVERHEAD)

    def saved(self, count: int, tokens: int, common: int) -> float:
        """Estimates what sessions save; negative if it is not worth it (see `of_turns` for the arguments)."""
        if not count:
            return 0.0
        return WORTHWHILE * self.of_forwards(count, tokens) - self.of_turns(count, tokens, common)

    def _sent(self, count: int, tokens: int) -> int:
        return self.copies * (tokens + count * self.prefix)
