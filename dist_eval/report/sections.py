"""Sections of `results.json` → the values that the report's template shows. Missing sections are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dist_eval.data.problem_types import MULTI_LABEL, SINGLE_LABEL
from dist_eval.metrics.catalogue import is_at_most_one, metric_names
from dist_eval.metrics.confusion import confusion_of, most_confused
from dist_eval.metrics.words import interval_words, metric_words
from dist_eval.report.charts import interval_bar, reliability
from dist_eval.report.table import class_columns, metrics_of_slices, metrics_shown, slice_name
from dist_eval.results.harness import HarnessResults
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import (
    CalibrationBin,
    ClassResults,
    ConfusionMatrix,
    Interval,
    OutputResults,
    Slice,
    SparseConfusionMatrix,
)
from dist_eval.results.work import RankWork, ServerTraffic
from dist_eval.tables import Footnotes

_CLASSES_IN_MATRIX, _CONFUSIONS, _ROWS, _DIAGRAMS, _LABELS_SHOWN = 24, 20, 200, 4, 10
# in print: columns up to which a confusion matrix has its natural width, columns up to which shares fit into cells,
# and characters that fit side by side in the header; longer names of columns are rotated
_FEW_COLUMNS, _COLUMNS_WITH_SHARES, _LETTERS = 6, 12, 80
_HEAT_LEVELS, _SLOW = 9, 1.2


@dataclass(frozen=True)
class MetricCell:
    """A metric in words.

    Attributes:
        name: its name.
        value: its value, None if undefined.
        limits: the limits of its interval, None without one.
        why_undefined: why it has no value.
        why_no_interval: why it has no interval.
        bar: coordinates of a bar (see `interval_bar`), None without one.
    """

    name: str
    value: str | None
    limits: tuple[str, str] | None
    why_undefined: str | None
    why_no_interval: str | None
    bar: dict[str, float] | None = None


def metric_cell(name: str, results: EvaluationResults | HarnessResults | Slice) -> MetricCell:
    """Returns a metric of a run, or of a slice, with its interval or the reason why there is none."""
    value, interval = results.metrics.get(name), results.intervals.get(name)
    is_custom = isinstance(results, EvaluationResults) and name in results.custom_metrics
    has_bar = is_at_most_one(name) and not is_custom  # a bar misleads for a loss of 0.9
    return MetricCell(
        name,
        None if value is None else metric_words(name, value),
        limits_in_words(interval, partial(metric_words, name)),
        results.undefined.get(name),
        interval.reason if interval else None,
        interval_bar(value, interval) if has_bar else None,
    )


def limits_in_words(interval: Interval | None, words: Callable[[float], str]) -> tuple[str, str] | None:
    """Returns the limits of an interval in words, None without one."""
    if interval is None or interval.limits is None:
        return None
    low, high = interval.limits
    return words(low), words(high)


def headline(results: EvaluationResults) -> dict[str, Any]:
    """Returns the main metrics, those of the table, and all others."""
    names = metrics_shown(results)
    return {
        "cards": [metric_cell(name, results) for name in metric_names(results.problem_type, "cards")],
        "figures": [metric_cell(name, results) for name in names],
        "others": [metric_cell(name, results) for name in results.metrics if name not in names],
        "confidence": max((one.confidence for one in results.intervals.values()), default=None),
    }


def confusion(results: EvaluationResults) -> dict[str, Any] | None:
    """Returns the confusion matrix of single labels, reduced to the most confused of many classes."""
    if results.problem_type != SINGLE_LABEL.name or results.confusion_matrix is None:
        return None
    names = results.confusion_matrix.labels
    shown, small = most_confused(_cells(results.confusion_matrix), _CLASSES_IN_MATRIX)
    labels, others, support = [names[number] for number in shown], len(names) - len(shown), _support(results)
    totals = [support[number] for number in shown]
    if others:
        labels.append(f"{others} others")
        totals.append(sum(support) - sum(totals))
    rows = [
        {
            "label": label,
            "total": total,
            "cells": [
                {
                    "count": int(count),
                    "rate": count / total if total else None,
                    "level": int(np.ceil(_HEAT_LEVELS * count / total)) if total else 0,
                    "is_right": column == place,
                    "is_summed": others > 0 and len(labels) - 1 in (place, column),
                }
                for column, count in enumerate(counts)
            ],
        }
        for place, (label, counts, total) in enumerate(zip(labels, small, totals, strict=True))
    ]
    return {
        "labels": labels,
        "rows": rows,
        "classes": len(names),
        "others": others,
        "omitted": getattr(results.confusion_matrix, "omitted", 0),
        "is_large": len(labels) > _FEW_COLUMNS,
        "is_crowded": len(labels) > _COLUMNS_WITH_SHARES,
        "is_turned": len(labels) > _FEW_COLUMNS and len(labels) * max(map(len, labels)) > _LETTERS,
    }


def _support(results: EvaluationResults) -> list[int]:
    """Returns the number of examples of each class, also of those whose cells the record omits."""
    return [row.support for row in results.per_class if isinstance(row, ClassResults)]


def _cells(matrix: ConfusionMatrix | SparseConfusionMatrix) -> Any:
    if isinstance(matrix, SparseConfusionMatrix):
        label, prediction, count = np.asarray(matrix.cells, dtype=np.int64).reshape(-1, 3).T
    else:
        dense = np.asarray(matrix.matrix, dtype=np.int64)
        label, prediction = dense.nonzero()
        count = dense[label, prediction]
    return confusion_of(label, prediction, len(matrix.labels), count)


@dataclass(frozen=True)
class Confusion:
    """Examples of a class that are taken for another one.

    Attributes:
        classes: numbers of both.
        label: the true class.
        prediction: the predicted one.
        count: number of examples.
        rate: their share of the true class.
    """

    classes: tuple[int, int]
    label: str
    prediction: str
    count: int
    rate: float


def top_confusions(results: EvaluationResults) -> list[Confusion]:
    """Returns the most frequent confusions of single labels; none for other problem types."""
    if results.problem_type != SINGLE_LABEL.name or results.confusion_matrix is None:
        return []
    names, cells = results.confusion_matrix.labels, _cells(results.confusion_matrix).tocoo()
    wrong = np.flatnonzero(cells.row != cells.col)
    found = wrong[np.argsort(-cells.data[wrong], kind="stable")[:_CONFUSIONS]]
    support = _support(results)
    return [
        Confusion((label, prediction), names[label], names[prediction], count, count / support[label])
        for label, prediction, count in np.stack([cells.row, cells.col, cells.data], axis=1)[found].tolist()
    ]


def label_confusion(results: EvaluationResults) -> dict[str, Any] | None:
    """Returns true positives, false negatives, false positives and true negatives of each label."""
    if results.problem_type != MULTI_LABEL.name or not isinstance(results.confusion_matrix, ConfusionMatrix):
        return None
    names, rows = results.confusion_matrix.labels, []
    matrices: Any = results.confusion_matrix.matrix
    for name, ((right_no, wrong_yes), (wrong_no, right_yes)) in zip(names[:_ROWS], matrices, strict=False):
        yes, no = right_yes + wrong_no, right_no + wrong_yes
        cells = [(right_yes, yes), (wrong_no, yes), (wrong_yes, no), (right_no, no)]
        rows.append({"label": name, "cells": [(count, count / of if of else None) for count, of in cells]})
    return {"rows": rows, "not_shown": len(names) - len(rows)}


@dataclass(frozen=True)
class ClassTable:
    """A table of classes, labels or outputs.

    Attributes:
        what: class, label or output.
        columns: names of the columns.
        rows: the name of each, and its cells: a value, and its interval or the number of a footnote.
        notes: the footnotes.
        not_shown: number of those without a row.
    """

    what: str
    columns: Sequence[str]
    rows: list[tuple[str, list[tuple[str, str]]]]
    notes: list[str]
    not_shown: int


def by_class(results: EvaluationResults, most: int = _ROWS) -> ClassTable | None:
    """Returns the table of classes, labels or outputs, up to a number of rows; None if there is one output."""
    (what, columns), rows, notes = class_columns(results.problem_type), results.per_class, Footnotes()
    if what == "output" and len(rows) < 2:
        return None
    cells = [(row.label, [_cell(name, row, notes) for name in columns]) for row in rows[:most]]
    return ClassTable(what, columns, cells, notes.lines(), max(0, len(rows) - most))


def _cell(name: str, row: ClassResults | OutputResults, notes: Footnotes) -> tuple[str, str]:
    value, interval = getattr(row, name), getattr(row.intervals, name, None)  # the support has none
    words = "–" if value is None else str(value) if name == "support" else metric_words(name, value)
    return words, "" if interval is None else interval_words(name, interval, notes)


def calibration(results: EvaluationResults) -> dict[str, Any] | None:
    """Returns the calibration metrics and the reliability diagram, in a multi-label problem one for each label."""
    if results.calibration is None:
        return None
    rows = results.calibration.per_label or []
    whole = [("", results.calibration.bins)] if results.calibration.bins else []
    diagrams = [*whole, *((row.label, row.bins) for row in rows[:_DIAGRAMS])]
    return {
        "figures": [metric_cell(name, results) for name in ("ece", "brier")],
        "diagrams": [
            {"label": label, "bins": [(one, _accuracy(one)) for one in bins if one.n], "chart": reliability(bins)}
            for label, bins in diagrams
        ],
        "labels": rows[:_ROWS],
        "not_shown": max(0, len(rows) - _ROWS),
    }


def _accuracy(one: CalibrationBin) -> MetricCell:
    limits = limits_in_words(one.interval, "{:.4f}".format)
    return MetricCell("accuracy", f"{one.accuracy:.4f}", limits, None, one.interval.reason)


@dataclass(frozen=True)
class SliceTable:
    """A table of slices by the same column.

    Attributes:
        by: the column.
        names: names of the metrics.
        rows: name, number of examples, and metrics of each slice.
        has_bars: whether a slice has a bar for its first metric.
        left_out: why metrics are undefined in all slices.
    """

    by: str
    names: list[str]
    rows: list[tuple[str, int, list[MetricCell]]]
    has_bars: bool
    left_out: list[str]


def slices(results: EvaluationResults) -> list[SliceTable]:
    """Returns a table for each slicing, without metrics that are undefined in all slices."""
    tables: dict[str, list[Slice]] = {}
    for one in results.slices:
        tables.setdefault(one.by, []).append(one)
    names = metrics_of_slices(results.problem_type)
    return [_slices_by(by, rows, names) for by, rows in tables.items()]


def _slices_by(by: str, slices: Sequence[Slice], names: Sequence[str]) -> SliceTable:
    missing = [name for name in names[1:] if all(one.metrics[name] is None for one in slices)]
    shown = [name for name in names if name not in missing]
    rows = [(slice_name(one), one.n, [metric_cell(name, one) for name in shown]) for one in slices]
    has_bars = any(figures[0].bar for _, _, figures in rows)
    return SliceTable(by, shown, rows, has_bars, [_why_left_out(name, slices) for name in missing])


def _why_left_out(name: str, slices: Sequence[Slice]) -> str:
    first, *others = (one.undefined[name] for one in slices)
    if all(why == first for why in others):
        return f"No slice has {name}: {first}."
    return f"No slice has {name}. In {slice_name(slices[0])!r}: {first}. The reasons of the others are in results.json."


def words(label: Any, problem: str, names: Sequence[str]) -> str:
    """Formats a label or a prediction.

    Args:
        label: an int64, or an array of shape [num_labels] for several labels or outputs.
        problem: name of the problem type.
        names: names of the classes or labels.
    """
    if problem == SINGLE_LABEL.name:
        return names[int(label)]
    if problem == MULTI_LABEL.name:
        found = [names[number] for number in np.flatnonzero(label).tolist()]
        more = [f"and {len(found) - _LABELS_SHOWN} more"] if len(found) > _LABELS_SHOWN else []
        return ", ".join([*found[:_LABELS_SHOWN], *more]) or "none"
    return ", ".join(f"{number:.6g}" for number in label[:_LABELS_SHOWN])


def ranks(ranks: Sequence[RankWork], *, with_hosts: bool) -> dict[str, Any]:
    """Returns the work and relative duration of each rank, and totals of each server over all ranks.

    Args:
        ranks: the section `ranks` of a run.
        with_hosts: show the names of hosts instead of "host 1" and so on.
    """
    hosts = {host: number for number, host in enumerate(dict.fromkeys(one.host for one in ranks), 1)}
    seconds = [one.seconds for one in ranks]
    longest, median = max(seconds), np.median(seconds)
    rows = [
        {
            "work": one,
            "host": one.host if with_hosts else f"host {hosts[one.host]}",
            "share": round(100 * one.seconds / longest, 2) if longest else 0.0,
            "speed": one.samples / one.seconds if one.seconds else None,
            "is_slow": one.seconds > _SLOW * median,
        }
        for one in ranks
    ]
    servers: dict[str, list[ServerTraffic]] = {}
    for one in ranks:
        for server in one.traffic.servers if one.traffic else ():
            servers.setdefault(server.peer, []).append(server)
    return {
        "rows": rows[:_ROWS],
        "not_shown": max(0, len(rows) - _ROWS),
        "servers": [
            {
                "peer": peer,
                "requests": sum(one.requests for one in traffic),
                "failures": sum(one.failures for one in traffic),
                "wrong_answers": sum(one.wrong_answers for one in traffic),
                "p50": max((one.latency_p50 for one in traffic if one.latency_p50 is not None), default=None),
                "p95": max((one.latency_p95 for one in traffic if one.latency_p95 is not None), default=None),
            }
            for peer, traffic in sorted(servers.items())
        ],
    }
