"""Layout of the charts of a report: coordinates only; the HTML template draws them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_eval.results.scores import CalibrationBin, Interval
from dist_eval.results.work import RankTimeline, TimelineBins

_LEVELS, _MOST_COLUMNS, _MOST_STRIPS, _TICKS = 5, 64, 48, 5


@dataclass(frozen=True)
class Scale:
    """A linear scale from values to coordinates.

    Attributes:
        low: smallest value.
        high: largest value.
        start: coordinate of the smallest value.
        stop: coordinate of the largest value.
    """

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Returns the coordinate of a value, rounded to a hundredth of a unit."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.stop - self.start), 2)

    def ticks(self, most: int = _TICKS) -> list[tuple[float, str]]:
        """Returns coordinates and labels of tick marks at round values."""
        step = 10 ** math.floor(math.log10(max(self.high - self.low, 1e-9) / most))
        step *= next(factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (step * factor) <= most)
        first = math.ceil(self.low / step - 1e-9)
        values = [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [(self(value), f"{value:.6g}") for value in values]


def interval_bar(value: float | None, interval: Interval | None) -> dict[str, float] | None:
    """Returns the coordinates of a metric and its interval on a line from 0 to 100.

    Args:
        value: the metric, which is at most 1.
        interval: its interval, None if that was not computed.

    Returns:
        The coordinates; None if there is no value or no interval, or if it extends below 0.
    """
    if value is None or interval is None or interval.limits is None:
        return None
    low, high = interval.limits
    if not 0 <= low <= high <= 1:
        return None
    return {"value": round(100 * value, 2), "low": round(100 * low, 2), "width": round(100 * (high - low), 2)}


def interval_bars(
    values: Sequence[float | None], intervals: Sequence[Interval | None]
) -> tuple[tuple[float, float] | None, list[dict[str, float] | None]]:
    """Returns the coordinates of the same metric of several runs on a common line from 0 to 100.

    Args:
        values: the metric of each run.
        intervals: its intervals.

    Returns:
        The smallest and largest limit, which are at the ends of the line, None if there are no intervals; and the
        coordinates as of `interval_bar`, None where there is no interval.
    """
    spans = [interval.limits if interval else None for interval in intervals]
    known = [limit for span in spans if span for limit in span]
    if not known:
        return None, [None] * len(values)
    x = Scale(min(known), max(known), 0, 100)
    bars = [
        {"value": x(value), "low": x(span[0]), "width": round(x(span[1]) - x(span[0]), 2)}
        if span and value is not None
        else None
        for value, span in zip(values, spans, strict=True)
    ]
    return (x.low, x.high), bars


def reliability(bins: Sequence[CalibrationBin]) -> dict[str, Any]:
    """Lays out a reliability diagram: accuracy against mean confidence, and a histogram of the confidences below it.

    Args:
        bins: at least one has examples.

    Returns:
        Points of the diagram with their intervals, bars of the histogram, and tick marks of the axes.
    """
    x, y = Scale(0, 1, 44, 324), Scale(0, 1, 290, 10)
    most = max(one.n for one in bins)
    points, bars = [], []
    for one in bins:
        if one.mean_confidence is None or one.accuracy is None:  # it has no examples
            continue
        low, high = map(y, one.interval.limits) if one.interval.limits else (None, None)
        points.append({"x": x(one.mean_confidence), "y": y(one.accuracy), "low": low, "high": high})
        left, width, height = x(one.low), x(one.high) - x(one.low) - 1, 48 * one.n / most
        bars.append({"x": left, "width": round(max(1.0, width), 2), "height": round(max(1.0, height), 2)})
    return {"points": points, "bars": bars, "x_ticks": x.ticks(), "y_ticks": y.ticks()}


def scatter(labels: np.ndarray, predictions: np.ndarray) -> dict[str, Any]:
    """Lays out a scatter plot of labels and predictions of one output.

    Args:
        labels: float64 of shape [n].
        predictions: float64 of shape [n].
    """
    both = np.concatenate([labels, predictions])
    low, high = (float(both.min()), float(both.max())) if len(both) else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    x, y = Scale(low, high, 44, 324), Scale(low, high, 290, 10)
    points = [(x(float(label)), y(float(found))) for label, found in zip(labels, predictions, strict=True)]
    return {"points": points, "x_ticks": x.ticks(), "y_ticks": y.ticks()}


def strips(ranks: Sequence[RankTimeline]) -> dict[str, Any] | None:
    """Lays out the activity of ranks and servers over time: a strip for each, shaded by the number in flight.

    Args:
        ranks: what each rank did.

    Returns:
        Strips of ranks and of servers on a common axis, in seconds from the earliest start; None if there are none.
    """
    by_rank = {f"rank {one.rank}": [one.batches] for one in ranks if one.batches}
    by_server: dict[str, list[TimelineBins]] = {}
    for one in ranks:
        for peer, timeline in one.servers.items():
            if timeline:
                by_server.setdefault(peer, []).append(timeline)
    groups = {"ranks": by_rank, "servers": dict(sorted(by_server.items()))}
    everything = [timeline for group in groups.values() for several in group.values() for timeline in several]
    if not everything:
        return None
    width = max(bins.bin_seconds for bins in everything)
    while True:
        first = min(math.floor(bins.began / width) for bins in everything)
        last = max(math.floor((_end(bins) - bins.bin_seconds / 2) / width) for bins in everything)
        if last - first < _MOST_COLUMNS:
            break
        width *= 2
    columns = last - first + 1
    x = Scale(0, columns * width, 130, 700)
    found: dict[str, Any] = {"ticks": x.ticks(), "column_seconds": width, "not_shown": {}}
    for name, group in groups.items():
        rows = {who: _coarsened(several, width, first, columns) for who, several in group.items()}
        most = max((float(row[0].max()) for row in rows.values()), default=0.0)
        shown = list(rows.items())[:_MOST_STRIPS]
        found["not_shown"][name] = len(rows) - len(shown)
        found[name] = [_strip(who, *row, most, x, width) for who, row in shown]
    return found


def _end(bins: TimelineBins) -> float:
    return bins.began + len(bins.busy) * bins.bin_seconds


def _coarsened(
    timelines: Iterable[TimelineBins], width: float, first: int, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums timelines in wider bins: average number in flight, number done, number failed."""
    sums = np.zeros((3, columns))
    for bins in timelines:
        centers = bins.began + bins.bin_seconds * (np.arange(len(bins.busy)) + 0.5)
        places = np.floor(centers / width).astype(np.int64) - first
        found = np.asarray([bins.busy, bins.done, bins.failed]) * [[bins.bin_seconds / width], [1.0], [1.0]]
        for row, values in zip(sums, found, strict=True):
            np.add.at(row, places, values)
    return sums[0], sums[1], sums[2]


def _strip(
    who: str, busy: np.ndarray, done: np.ndarray, failed: np.ndarray, most: float, x: Scale, width: float
) -> dict[str, Any]:
    active = np.flatnonzero((busy > 0) | (done > 0))
    levels = np.where(busy > 0, np.ceil(_LEVELS * busy / max(most, 1e-9)), 0).clip(0, _LEVELS).astype(int)
    paths: dict[int, str] = {}
    edges = np.flatnonzero(np.diff(levels, prepend=-1, append=-1))
    for start, stop in itertools.pairwise(edges.tolist()):
        if level := int(levels[start]):
            left, right = x(start * width), x(stop * width)
            paths[level] = paths.get(level, "") + f"M{left:g} 0H{right:g}V14H{left:g}z"
    return {
        "who": who,
        "paths": sorted(paths.items()),
        "failed": [x((place + 0.5) * width) for place in np.flatnonzero(failed)],
        "failures": int(failed.sum()),
        "done": int(done.sum()),
        "first": float(active[0] * width),
        "last": float((active[-1] + 1) * width),
        "busy": float(busy[active[0] : active[-1] + 1].mean()),
        "most": float(busy.max()),
    }
