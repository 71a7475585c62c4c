"""What sessions and plain forwards cost, in tokens that servers compute."""

from __future__ import annotations

from dataclasses import dataclass

SESSION_TOKENS = 1024
"""Tokens that a session may hold, of all its texts; one of a single text may hold more. It is a quarter of what Petals'
servers have memory for by default."""

REQUEST_OVERHEAD = 80.0
"""What a server does for a request besides its tokens, in tokens (see `benchmarks.prefix`)."""

CACHE_READING = 0.02
"""What attending to a token in a cache costs, in tokens that are computed anew (see `benchmarks.prefix`)."""

SESSIONS = 4
"""Sessions that a run may open, each of which computes the beginning."""

WORTHWHILE = 0.9
"""Sessions have to cost less than this share of the alternative: what is estimated may be wrong."""


def rows_in_session(length: int, session_tokens: int) -> int:
    """Returns how many texts of a length, prompts included, a session holds; at least 1."""
    return max(1, session_tokens // length)


@dataclass(frozen=True)
class Costs:
    """What texts cost, by the way that they are sent.

    Attributes:
        prefix: see `dist_eval.data.plan.plan_batches`.
        prompt_tokens: those of `prefix` that are prompts, which all texts begin with.
        copies: see `dist_eval.data.plan.plan_batches`.
        session_tokens: tokens that a session may hold.
    """

    prefix: int
    prompt_tokens: int
    copies: int
    session_tokens: int

    def of_forwards(self, count: int, tokens: int) -> float:
        """Estimates plain forwards.

        Args:
            count: number of texts.
            tokens: of all of them, without prompts.
        """
        return self._sent(count, tokens) * (1 + REQUEST_OVERHEAD / 1024)

    def of_steps(self, count: int, tokens: int, common: int) -> float:
        """Estimates the steps of sessions that hold a common beginning.

        Args:
            count: number of texts, at least 1.
            tokens: of all of them, without prompts.
            common: tokens that all of them begin with, without prompts.
        """
        sent, forwards, beginning = self._sent(count, tokens), count * self.copies, self.prompt_tokens + common
        rows = rows_in_session(-(-sent // forwards), self.session_tokens)
        each = REQUEST_OVERHEAD + CACHE_READING * rows * beginning
        return sent - forwards * beginning + -(-forwards // rows) * each

    def of_opening(self, count: int, tokens: int, common: int, shapes: int = 1) -> float:
        """Estimates what it costs to open these sessions.

        Args:
            count: see `of_steps`.
            tokens: see `of_steps`.
            common: see `of_steps`.
            shapes: numbers of rows for which sessions have to be opened.
        """
        sent, forwards = self._sent(count, tokens), count * self.copies
        rows = rows_in_session(-(-sent // forwards), self.session_tokens)
        openings = min(-(-forwards // rows), SESSIONS * shapes)
        return openings * (rows * (self.prompt_tokens + common) + REQUEST_OVERHEAD)

    def saved(self, count: int, tokens: int, common: int, shapes: int = 1) -> float:
        """Estimates what sessions save; negative if it is not worth it (see `of_opening` for the arguments)."""
        if not count:
            return 0.0
        sessions = self.of_steps(count, tokens, common) + self.of_opening(count, tokens, common, shapes)
        return WORTHWHILE * self.of_forwards(count, tokens) - sessions

    def _sent(self, count: int, tokens: int) -> int:
        return self.copies * (tokens + count * self.prefix)
