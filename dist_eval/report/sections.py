"""Sections of `results.json` → the values that the report's template shows. Missing sections are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dist_eval.data.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.metrics.catalogue import OF_CLASS, OF_OUTPUT, is_at_most_one, metric_names
from dist_eval.report.charts import interval_bar, reliability
from dist_eval.report.footnotes import Footnotes
from dist_eval.report.table import figure_words, figures_of_slices, figures_shown, interval_words, slice_name

_CLASSES_IN_MATRIX, _CONFUSIONS, _ROWS, _DIAGRAMS, _LABELS_SHOWN = 24, 20, 200, 4, 10
_FEW_COLUMNS, _COLUMNS_WITH_SHARES, _LETTERS = 6, 12, 80
"""In print: columns up to which a confusion matrix has its natural width, columns up to which shares fit into cells,
and characters that fit side by side in the header; longer names of columns are rotated."""

_HEAT_LEVELS, _SLOW = 9, 1.2


def figure(name: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a metric of a run, or of a slice, as text, with its interval or the reason why there is none."""
    value, interval = results["metrics"].get(name), results["intervals"].get(name)
    shown = _shown(interval, results["undefined"].get(name))
    if shown["interval"]:
        ends = {end: figure_words(name, shown["interval"][end]) for end in ("low", "high")}
        shown["interval"] = {**shown["interval"], **ends}
    has_bar = is_at_most_one(name) and name not in results.get("custom_metrics", ())  # a bar misleads for a loss of 0.9
    return {
        "name": name,
        "value": None if value is None else figure_words(name, value),
        "bar": interval_bar(value, interval) if has_bar else None,
        **shown,
    }


def _shown(interval: Mapping[str, Any] | None, why_undefined: str | None = None) -> dict[str, Any]:
    has_ends = interval is not None and interval["low"] is not None
    return {
        "why": why_undefined,
        "interval": interval if has_ends else None,
        "no_interval": interval["reason"] if interval and not has_ends else None,
    }


def headline(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the main metrics, those of the table, and all others."""
    names = figures_shown(results["problem_type"], results["metrics"], results["custom_metrics"])
    figures = [figure(name, results) for name in names]
    others = [figure(name, results) for name in results["metrics"] if name not in names]
    confidences = {one["confidence"] for one in results["intervals"].values()}
    return {
        "cards": [figure(name, results) for name in metric_names(results["problem_type"], "cards")],
        "figures": figures,
        "others": others,
        "confidence": max(confidences, default=None),
        "majority_share": results.get("majority_share"),
    }


def confusion(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a single-label confusion matrix, reduced to the most confused of many classes, and the top confusions."""
    section = results.get("confusion_matrix")
    if results["problem_type"] != SINGLE_LABEL.name or not section:
        return None
    matrix, names = np.asarray(section["matrix"], dtype=np.int64), section["labels"]
    wrong = matrix - np.diag(np.diag(matrix))
    shown = np.arange(len(names))
    if len(names) > _CLASSES_IN_MATRIX + 1:
        errors = wrong.sum(axis=0) + wrong.sum(axis=1)
        shown = np.sort(np.argsort(-errors, kind="stable")[:_CLASSES_IN_MATRIX])
    others = np.setdiff1d(np.arange(len(names)), shown)
    small, labels = matrix[np.ix_(shown, shown)], [names[number] for number in shown]
    if len(others):
        right = matrix[np.ix_(shown, others)].sum(axis=1, keepdims=True)
        below = matrix[np.ix_(others, shown)].sum(axis=0, keepdims=True)
        corner = matrix[np.ix_(others, others)].sum().reshape(1, 1)
        small, labels = np.block([[small, right], [below, corner]]), [*labels, f"{len(others)} others"]
    totals = small.sum(axis=1)
    rows = [
        {
            "label": label,
            "total": int(total),
            "cells": [
                {
                    "count": int(count),
                    "rate": count / total if total else None,
                    "level": int(np.ceil(_HEAT_LEVELS * count / total)) if total else 0,
                    "is_right": column == place,
                    "is_summed": len(others) > 0 and len(labels) - 1 in (place, column),
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
        "omitted": len(others),
        "is_large": len(labels) > _FEW_COLUMNS,
        "is_crowded": len(labels) > _COLUMNS_WITH_SHARES,
        "is_turned": len(labels) > _FEW_COLUMNS and len(labels) * max(map(len, labels)) > _LETTERS,
        "pairs": _pairs(wrong, matrix.sum(axis=1), names),
    }


def _pairs(wrong: np.ndarray, totals: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the most frequent confusions."""
    flat = wrong.ravel()
    order = np.argsort(-flat, kind="stable")[:_CONFUSIONS]
    return [
        {
            "classes": divmod(place, len(names)),
            "label": names[place // len(names)],
            "prediction": names[place % len(names)],
            "count": int(flat[place]),
            "rate": flat[place] / totals[place // len(names)],
        }
        for place in order.tolist()
        if flat[place]
    ]


def label_confusion(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns true positives, false negatives, false positives and true negatives of each label."""
    section = results.get("confusion_matrix")
    if results["problem_type"] != MULTI_LABEL.name or not section:
        return None
    rows = []
    for name, ((right_no, wrong_yes), (wrong_no, right_yes)) in zip(
        section["labels"][:_ROWS], section["matrix"], strict=False
    ):
        yes, no = right_yes + wrong_no, right_no + wrong_yes
        cells = [(right_yes, yes), (wrong_no, yes), (wrong_yes, no), (right_no, no)]
        rows.append({"label": name, "cells": [(count, count / of if of else None) for count, of in cells]})
    return {"rows": rows, "omitted": len(section["labels"]) - len(rows)}


def by_class(results: Mapping[str, Any], most: int = _ROWS) -> dict[str, Any] | None:
    """Returns the table of classes, labels or outputs, up to a number of rows, and its footnotes."""
    rows, notes = results["per_class"], Footnotes()
    is_regression = results["problem_type"] == REGRESSION.name
    if is_regression and len(rows) < 2:
        return None
    return {
        "what": {SINGLE_LABEL.name: "class", MULTI_LABEL.name: "label"}.get(results["problem_type"], "output"),
        "columns": OF_OUTPUT if is_regression else (*OF_CLASS, "support"),
        "rows": [_row_in_words(row, notes) for row in rows[:most]],
        "notes": notes.lines(),
        "omitted": max(0, len(rows) - most),
    }


def _row_in_words(row: Mapping[str, Any], notes: Footnotes) -> dict[str, Any]:
    """Returns the metrics of a class as text, and in `ends` the interval of each or the number of its footnote."""
    intervals = row.get("intervals") or {}  # runs of earlier versions have none
    words = {name: figure_words(name, value) if isinstance(value, float) else value for name, value in row.items()}
    return {**words, "ends": {name: interval_words(name, one, notes) for name, one in intervals.items()}}


def calibration(results: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the calibration metrics and the reliability diagram, in a multi-label problem one for each label."""
    section = results["calibration"]
    if section is None:
        return None
    rows = section["per_label"] or []
    whole = [("", section["bins"])] if section["bins"] else []
    diagrams = [*whole, *((row["label"], row["bins"]) for row in rows[:_DIAGRAMS])]
    return {
        "figures": [figure(name, results) for name in ("ece", "brier")],
        "diagrams": [
            {
                "label": label,
                "bins": [{**one, "shown": _shown(one["interval"])} for one in bins if one["n"]],
                "chart": reliability(bins),
            }
            for label, bins in diagrams
        ],
        "labels": rows[:_ROWS],
        "omitted": max(0, len(rows) - _ROWS),
    }


def slices(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a table for each slicing, without metrics that are undefined in all slices."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for one in results["slices"]:
        tables.setdefault(one["by"], []).append(one)
    names = figures_of_slices(results["problem_type"])
    return [_slices_by(by, rows, names) for by, rows in tables.items()]


def _slices_by(by: str, slices: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    missing = [name for name in names[1:] if all(one["metrics"][name] is None for one in slices)]
    shown = [name for name in names if name not in missing]
    rows = [
        {"name": slice_name(one), "n": one["n"], "figures": [figure(name, one) for name in shown]} for one in slices
    ]
    return {
        "by": by,
        "names": shown,
        "rows": rows,
        "has_bars": any(row["figures"][0]["bar"] for row in rows),
        "left_out": [_why_left_out(name, slices) for name in missing],
    }


def _why_left_out(name: str, slices: Sequence[dict[str, Any]]) -> str:
    first, *others = (one["undefined"][name] for one in slices)
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


def ranks(results: Mapping[str, Any], *, with_hosts: bool) -> dict[str, Any]:
    """Returns the work and relative duration of each rank, and totals of each server over all ranks.

    Args:
        results: content of `results.json`.
        with_hosts: show the names of hosts instead of "host 1" and so on.
    """
    hosts = {host: number for number, host in enumerate(dict.fromkeys(one["host"] for one in results["ranks"]), 1)}
    seconds = [one["seconds"] for one in results["ranks"]]
    longest = max(seconds)
    rows = [
        {
            **one,
            "host": one["host"] if with_hosts else f"host {hosts[one['host']]}",
            "share": round(100 * one["seconds"] / longest, 2) if longest else 0.0,
            "speed": one["samples"] / one["seconds"] if one["seconds"] else None,
            "is_slow": one["seconds"] > _SLOW * np.median(seconds),
        }
        for one in results["ranks"]
    ]
    servers: dict[str, dict[str, Any]] = {}
    for one in results["ranks"]:
        for server in (one.get("traffic") or {}).get("servers", ()):
            sums = servers.setdefault(server["peer"], {"peer": server["peer"], "p50": [], "p95": []})
            for name in ("requests", "failures", "wrong_answers"):
                sums[name] = sums.get(name, 0) + server[name]
            for short in ("p50", "p95"):
                if server[f"latency_{short}"] is not None:
                    sums[short].append(server[f"latency_{short}"])
    return {
        "rows": rows[:_ROWS],
        "omitted": max(0, len(rows) - _ROWS),
        "servers": [
            {**one, "p50": max(one["p50"], default=None), "p95": max(one["p95"], default=None)}
            for _, one in sorted(servers.items())
        ],
    }
