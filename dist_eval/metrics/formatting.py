"""Metrics and their intervals in words."""

from __future__ import annotations

from dist_eval.metrics.catalogue import is_unbounded
from dist_eval.results.scores import Interval
from dist_eval.tables import Footnotes

_LEAST, _MOST = 5e-5, 1e6


def format_metric(name: str, value: float) -> str:
    """Formats a metric: four decimals, or four significant digits for very small, large or unbounded values."""
    if is_unbounded(name) or (value and not _LEAST <= abs(value) < _MOST):
        return f"{value:#.4g}".removesuffix(".")
    return f"{value:.4f}"


def format_limits(name: str, interval: Interval | None) -> str:
    """Returns the suffix of a metric that has its interval; empty if there is none."""
    if interval is None or interval.limits is None:
        return ""
    low, high = interval.limits
    return f" [{format_metric(name, low)}, {format_metric(name, high)}]"


def format_interval(name: str, interval: Interval, notes: Footnotes, why_undefined: str | None = None) -> str:
    """Returns the suffix of a metric in a table: its interval, or the number of the footnote with the reason."""
    return format_limits(name, interval) or notes.mark(why_undefined or interval.reason)
