"""Slices of a dataset: metrics of the examples that share a value of a column, or have a similar length.

Numeric columns with many values are split at quantiles into ranges of about the same number of examples; otherwise each
value is a slice, only the most frequent ones if there are many. A missing value is treated like any other value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dist_eval.data.selection import positions_of
from dist_eval.metrics.catalogue import METRICS, metric_names
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.units import FEW_UNITS
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION
from dist_eval.record import MetricValues, Reasons
from dist_eval.results.scores import Intervals, Slice, SliceKind
from dist_eval.statistics import Interval, metric_intervals
from dist_eval.tables import format_count

# name of the slicing by number of tokens, instead of a column's name
LENGTH = "length"

# maximum number of values with their own slices; all others form one more slice
MOST_VALUES = 50

# maximum number of resamples for the interval of a metric of a slice
RESAMPLES = 1_999

_RANGES = 5
_MOST_NUMBERS = 20

Measured = tuple[MetricValues, Reasons, Intervals]


@dataclass(frozen=True)
class Part:
    """The definition of a slice."""

    kind: SliceKind  # "rest": all values without a slice of their own
    value: str | None  # the value or range as text; None if missing
    low: float | None = None  # smallest number of a range, None for other kinds
    high: float | None = None  # largest number of a range


@dataclass(frozen=True)
class Slicing:
    """A partition of a dataset into slices."""

    by: str  # name of the column, or `LENGTH`
    parts: list[Part]  # the definitions of the slices
    part_of: np.ndarray  # the slice of each row of the dataset, int64 of shape [rows]
    rows: np.ndarray | None = None  # the selected rows, ascending, int64 of shape [rows]; None for all rows

    @classmethod
    def of_lengths(cls, lengths: np.ndarray, rows: np.ndarray | None = None) -> Slicing:
        """Partitions by the number of tokens, int32 of shape [rows]."""
        values, number_of = np.unique(lengths, return_inverse=True)
        parts, part_of_value = _ranges(values.astype(np.float64), np.bincount(number_of), " tokens")
        return cls(LENGTH, parts, part_of_value[number_of], rows)

    @classmethod
    def of_column(cls, by: str, column: pa.Array, rows: np.ndarray | None = None) -> Slicing:
        """Partitions by a column of text; missing values are null."""
        encoded = column.dictionary_encode()
        values: pa.Array = encoded.dictionary
        number_of = encoded.indices.fill_null(len(values)).to_numpy()  # the missing value comes last
        counts = np.bincount(number_of, minlength=len(values) + 1)
        numbers = _numbers(values)
        known = np.zeros(0) if numbers is None else numbers[~np.isnan(numbers)]
        if numbers is not None and len(np.unique(known)) > _MOST_NUMBERS:
            parts, part_of_value = _ranges(numbers, counts[:-1])
        else:
            parts, part_of_value = _values(values.to_pylist(), counts[:-1], numbers)
        if counts[-1]:
            parts = [*parts, Part("missing", None)]
        return cls(by, parts, np.append(part_of_value, len(parts) - 1)[number_of], rows)


def _numbers(values: pa.Array) -> np.ndarray | None:
    """Parses texts as numbers, blank ones as NaN; returns None if one is not a finite number."""
    trimmed = pc.utf8_trim_whitespace(values)
    try:
        numbers = pc.cast(pc.if_else(pc.equal(trimmed, ""), pa.scalar(None, pa.string()), trimmed), pa.float64())
    except pa.ArrowInvalid:
        return None
    found = numbers.to_numpy(zero_copy_only=False)
    blank = numbers.is_null().to_numpy(zero_copy_only=False)
    return np.asarray(found, dtype=np.float64) if np.isfinite(found[~blank]).all() and not blank.all() else None


def _ranges(numbers: np.ndarray, counts: np.ndarray, unit: str = "") -> tuple[list[Part], np.ndarray]:
    """Splits numbers into ranges with about the same number of rows; equal numbers are never separated."""
    order = np.argsort(numbers, kind="stable")  # NaN last
    order = order[~np.isnan(numbers[order])]
    upto = np.cumsum(counts[order])
    # a range begins with the first value after its quantile, counted in rows
    place = np.minimum((upto - counts[order]) * _RANGES // upto[-1], _RANGES - 1)
    same = np.append(False, np.diff(numbers[order]) == 0)  # the same number in two spellings, such as 1 and 1.0
    place = np.maximum.accumulate(np.where(same, 0, place))
    found, range_of = np.unique(place, return_inverse=True)
    inside = [numbers[order[range_of == number]] for number in range(len(found))]
    limits = [(float(each[0]), float(each[-1])) for each in inside]
    parts = []
    plain = _distinct_texts([number for both in limits for number in both])
    for low, high in limits:
        words = plain[low] if low == high else f"{plain[low]} to {plain[high]}"
        parts.append(Part("range", words + unit, low, high))
    part_of = np.full(len(numbers), len(parts), dtype=np.int64)
    part_of[order] = range_of
    if len(order) < len(numbers):
        parts.append(Part("value", ""))
    return parts, part_of


def _distinct_texts(numbers: Sequence[float]) -> dict[float, str]:
    """Returns a text for each number, with as many digits as distinguish them."""
    texts: dict[float, str] = {}
    for digits in range(6, 18):
        texts = {number: _plain(number, digits) for number in numbers}
        if len(set(texts.values())) == len(texts):
            break
    return texts


def _plain(number: float, digits: int) -> str:
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else f"{number:.{digits}g}"


def _values(values: list[str], counts: np.ndarray, numbers: np.ndarray | None) -> tuple[list[Part], np.ndarray]:
    """Builds a slice for each value, numbers in ascending order, other values by descending frequency."""
    order = sorted(range(len(values)), key=lambda number: (-int(counts[number]), values[number]))
    shown, others = order[:MOST_VALUES], order[MOST_VALUES:]
    if numbers is not None:
        shown = sorted(shown, key=lambda number: (np.isnan(numbers[number]), numbers[number], values[number]))
    parts = [Part("value", values[number]) for number in shown]
    part_of = np.full(len(values), len(parts), dtype=np.int64)
    part_of[shown] = np.arange(len(shown))
    if others:
        parts.append(Part("rest", f"{format_count(len(others), 'other value')}"))
    return parts, part_of


def slices_of(
    index: np.ndarray,
    slicing: Slicing,
    names: Sequence[str],
    confidence: float,
    measure: Callable[[np.ndarray], Measured],
) -> list[Slice]:
    """Returns the entries of a slicing in the section `slices` of `results.json`, with the metrics `names`.

    `index` has the rows of the dataset that have an answer, int64 of shape [n]. `measure` gets at least one place in
    `index`; it returns metrics, reasons for undefined ones, and intervals.
    """
    why = "none of its examples has a prediction"
    unknown = Interval(confidence=confidence, reason=why)
    part_of = slicing.part_of[positions_of(index, slicing.rows)]
    entries = []
    for number, part in enumerate(slicing.parts):
        places = np.flatnonzero(part_of == number)
        values, undefined, intervals = dict.fromkeys(names), dict.fromkeys(names, why), dict.fromkeys(names, unknown)
        if len(places):
            values, undefined, intervals = measure(places)
        entries.append(
            Slice(by=slicing.by, **vars(part), n=len(places), metrics=values, undefined=undefined, intervals=intervals)
        )
    return entries


def compute_slices(
    predictions: Predictions,
    slicing: Slicing,
    label_names: Sequence[str],
    *,
    confidence: float = 0.95,
    sampling_fraction: float = 0.0,
) -> list[Slice]:
    """Computes the slices of predictions (see `slices_of`).

    Means over classes are undefined in a slice with few examples of a class of the data. The reason is the same for all
    slices, so tables need it only once.
    """
    names = metric_names(predictions.problem.name, "slices")
    needed = np.flatnonzero(_support(predictions))
    what = "label" if predictions.problem is MULTI_LABEL else "class"
    why_no_mean = f"a {what} with fewer than {FEW_UNITS} examples in the slice"

    def measure(places: np.ndarray) -> Measured:
        inside = predictions.at(places)
        metrics = compute_metrics(inside, label_names)
        values, undefined = metrics.values, metrics.undefined
        if (_support(inside)[needed] < FEW_UNITS).any():
            means = [metric.name for metric in METRICS[predictions.problem.name] if metric.over_classes]
            values, undefined = values | dict.fromkeys(means), undefined | dict.fromkeys(means, why_no_mean)
        metrics = replace(
            metrics,
            values={name: values[name] for name in names},
            undefined={name: undefined[name] for name in names if name in undefined},
        )
        intervals = metric_intervals(
            inside, metrics, confidence=confidence, sampling_fraction=sampling_fraction, most=RESAMPLES
        )
        return metrics.values, metrics.undefined, intervals

    return slices_of(predictions.index, slicing, names, confidence, measure)


def _support(predictions: Predictions) -> np.ndarray:
    """Returns the number of examples of each class or label, int64 of shape [classes]; empty for a regression."""
    if predictions.problem is REGRESSION:
        return np.zeros(0, dtype=np.int64)
    if predictions.problem is MULTI_LABEL:
        return np.asarray(predictions.label.sum(axis=0), dtype=np.int64)
    return np.bincount(predictions.label, minlength=predictions.num_labels)
