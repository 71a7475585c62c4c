"""Shows comparisons: as a document, as JSON, and as a CSV file of the changed predictions."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dist_eval.compare.comparison import ComparedRun, Comparison, GroupedTest
from dist_eval.errors import RunError, translating_os_errors
from dist_eval.report.document import Cell, Document, Number, Rows, Section, Table, format_metric, metric_number
from dist_eval.report.naming import distinct_ends
from dist_eval.statistics import PairedDifference
from dist_eval.tables import Footnotes, csv_text, format_count

_LEAST_P = 1e-300  # below this the tails of the distributions are not accurate
_HEAD_WIDTH = 28
_ROUNDING = 1 + 1e-9
_CHANGES = ("gained", "lost")  # columns: documents that only the second run gets right, and only the first
_TESTS_OF_DOCUMENTS = "p by McNemar's test where a document is right or wrong, otherwise by the paired bootstrap"


def describe_comparisons(comparisons: Sequence[Comparison]) -> Document:
    """Describes comparisons: a table of differences for each of them."""
    first = comparisons[0].first
    runs = list({run.folder: run for pair in comparisons for run in (pair.first, pair.run)}.values())
    names = dict(zip([run.folder for run in runs], short_names([run.folder for run in runs]), strict=True))
    has_baseline = all(comparison.first is first for comparison in comparisons)
    adjusted = f"p (Holm, {_family(comparisons)})"
    with_whom = f"compared with {first.folder}" if has_baseline else f"{len(comparisons)} pairs of runs"
    sections = []
    for comparison in comparisons:
        pair = str(comparison.run.folder) + ("" if has_baseline else f" against {comparison.first.folder}")
        caption = ": ".join([pair, *(["; ".join(comparison.remarks)] if comparison.remarks else [])])
        tests = _test_lines(comparison, len(comparisons), "runs" if has_baseline else "pairs")
        notes = Footnotes()
        confidence = next((difference.interval.confidence for difference in comparison.differences.values()), None)
        heads = [_with_confidence(names[run.folder], run.confidence) for run in (comparison.first, comparison.run)]
        columns = ["metric", *heads, _with_confidence("difference", confidence), "p", adjusted]
        columns += ["documents"] * bool(comparison.samples) + [*_CHANGES] * bool(comparison.tests)
        rows = _rows(comparison, notes)
        table = Table(caption, columns, rows, [*tests, *notes.lines()], summary_rows=len(rows))
        sections.append(Section(pair, [table]))
    return Document("Comparison", [f"{first.describe_runs(runs)}; {with_whom}"], sections, facts_first=True)


def describe_pairs(comparisons: Sequence[Comparison]) -> Document:
    """Describes many comparisons: a row for each metric of each of them, without the values of the runs."""
    folders = dict.fromkeys(run.folder for pair in comparisons for run in (pair.first, pair.run))
    names = dict(zip(folders, distinct_ends(list(folders)), strict=True))
    notes = Footnotes()
    rows = [
        [names[comparison.run.folder], names[comparison.first.folder], *row[:4]]
        for comparison in comparisons
        for row in _rows(comparison, notes, with_values=False)
    ]
    confidence = next((each.interval.confidence for pair in comparisons for each in pair.differences.values()), None)
    columns = ["run", "against", "metric", _with_confidence("difference", confidence)]
    columns += ["p", f"p (Holm, {_family(comparisons)})"]
    table = Table("Differences", columns, rows, notes.lines(), keys=3, summary_rows=len(rows))
    return Document("Comparison", [], [Section("Differences", [table])])


def _family(comparisons: Sequence[Comparison]) -> int:
    """Returns the number of p-values that are adjusted together."""
    return sum(value is not None for comparison in comparisons for value in comparison.corrected.values())


def _rows(comparison: Comparison, notes: Footnotes, with_values: bool = True) -> Rows:
    """Returns for each metric: name, values in both runs, difference, p-value before and after Holm's procedure."""
    rows: Rows = []
    shown_runs = (comparison.first, comparison.run) if with_values else ()
    for name, difference in comparison.differences.items():
        is_bound = _is_bound(difference.p_value, difference.interval.resamples)
        adjusted = format_p(comparison.corrected[name], is_bound)
        row: list[Cell] = [
            name,
            *(metric_number(name, run.results, notes) for run in shown_runs),
            _signed(name, difference, notes),
            Number(format_p(difference.p_value, is_bound)),
            Number(adjusted, _too_coarse(comparison, name, notes)),
        ]
        if name in comparison.samples:
            paired, left_out = comparison.samples[name]
            row.append(Number(f"{paired}", f" of {paired + left_out}" if left_out else ""))
        if comparison.tests:
            shown = comparison.tests.get(name)
            row += ["-", "-"] if shown is None else [Number(str(shown.only_second)), Number(str(shown.only_first))]
        rows.append(row)
    return rows


def short_names(folders: Sequence[Path]) -> list[str]:
    """Returns the shortest distinct suffixes of paths, abbreviated if they are too long and remain distinct."""
    ends = distinct_ends(folders)
    short = [end if len(end) <= _HEAD_WIDTH else f"...{end[3 - _HEAD_WIDTH :]}" for end in ends]
    return short if len(set(short)) == len(short) else ends


def _test_lines(comparison: Comparison, num_comparisons: int, unit: str) -> list[str]:
    """Returns a line on the tests, none without one."""
    test = comparison.test
    if test is None:
        return [_TESTS_OF_DOCUMENTS] if comparison.tests else []
    if isinstance(test, GroupedTest):
        why = f" ({test.reason})" if test.reason else ""
        name = f"paired bootstrap of {test.metric} over {format_count(test.count, 'group')} of {test.column!r}{why}"
    else:
        name = f"McNemar's test ({test.method})"
    is_bound = isinstance(test, GroupedTest) and _is_bound(test.p_value, test.resamples)
    also = ""
    if num_comparisons > 1:
        also = f", by Holm's procedure for {num_comparisons} {unit} {format_p(comparison.test_corrected, is_bound)}"
    return [f"{name}: p = {format_p(test.p_value, is_bound)}{also}".replace("p = <=", "p <= ")]


def _with_confidence(words: str, confidence: float | None) -> str:
    return words if confidence is None else f"{words} [{100 * confidence:g}%]"


def _signed(name: str, difference: PairedDifference, notes: Footnotes) -> Number:
    """Returns a difference with its sign and its interval, or the number of the footnote with the reason."""

    def signed(value: float) -> str:
        return ("+" if value >= 0 else "") + format_metric(name, value)

    value, interval = difference.value, difference.interval
    if interval.limits is None or value is None:
        return Number("-" if value is None else signed(value), notes.mark(interval.reason))
    low, high = interval.limits
    return Number(signed(value), f" [{signed(low)}, {signed(high)}]")


def _is_bound(p_value: float | None, resamples: int | None) -> bool:
    """Returns whether a p-value is the smallest that its resamples allow, so that more could make it smaller."""
    return p_value is not None and resamples is not None and 0 < p_value <= _ROUNDING / (resamples + 1)


def _too_coarse(comparison: Comparison, name: str, notes: Footnotes) -> str:
    """Marks a p-value that is as small as its resamples allow, but not significant after adjustment."""
    difference, corrected = comparison.differences[name], comparison.corrected[name]
    resamples = difference.interval.resamples
    if corrected is None or not _is_bound(difference.p_value, resamples):
        return ""
    if corrected <= 1 - difference.interval.confidence:
        return ""
    return notes.mark(f"{resamples} resamples allow no smaller p-value; compare's --resamples sets more")


def format_p(value: float | None, is_bound: bool = False) -> str:
    """Formats a p-value; `is_bound` says that it is an upper bound (see `_is_bound`)."""
    if value is None:
        return "-"
    if is_bound and value < 1:
        return "<=" + format_p(value)
    if value < _LEAST_P:
        return f"<{_LEAST_P:.0e}"
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.0e}"


def to_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Returns the content of the tables as JSON-compatible objects."""
    first = comparisons[0].first
    return {
        **first.describe(),
        "compared_with": str(first.folder),
        "metrics": first.results.metrics,
        "intervals": _intervals(first),
        "runs": [
            {
                "run": str(comparison.run.folder),
                "compared_with": str(comparison.first.folder),
                "metrics": comparison.run.results.metrics,
                "intervals": _intervals(comparison.run),
                **comparison.facts,
                "mcnemar": None if isinstance(comparison.test, GroupedTest) else _test_to_json(comparison),
                "paired_bootstrap_of_groups": _test_to_json(comparison)
                if isinstance(comparison.test, GroupedTest)
                else None,
                "differences": {name: _difference_to_json(comparison, name) for name in comparison.differences},
            }
            for comparison in comparisons
        ],
    }


def _difference_to_json(comparison: Comparison, name: str) -> dict[str, Any]:
    difference = comparison.differences[name]
    content = {
        **asdict(difference),
        "interval": difference.interval.to_json(),
        "p_value_holm": comparison.corrected[name],
    }
    if name in comparison.samples:
        documents, left_out = comparison.samples[name]
        test = comparison.tests.get(name)
        content |= {"documents": documents, "unpaired": left_out, "mcnemar": test and asdict(test)}
    return content


def _intervals(run: ComparedRun) -> dict[str, Any]:
    return {name: interval.to_json() for name, interval in run.results.intervals.items()}


def _test_to_json(comparison: Comparison) -> dict[str, Any] | None:
    return None if comparison.test is None else {**asdict(comparison.test), "p_value_holm": comparison.test_corrected}


def write_changed(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Writes the examples whose prediction changed, as a CSV file.

    Its columns are run, index (position in the dataset, or task and number of a document), label, before, after (names
    of classes, values of a regression, or texts; several labels or outputs are joined by a semicolon), and change
    ("gained", "lost" or "still wrong"; in a regression "nearer", "farther" or "as far"). Names that a spreadsheet would
    compute follow an apostrophe.
    """
    with (
        translating_os_errors(RunError, f"--changed {path} cannot be written"),
        path.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["run", "index", "label", "before", "after", "change"])
        for comparison in comparisons:
            run = csv_text(str(comparison.run.folder))
            writer.writerows([run, *vars(change).values()] for change in comparison.changes())
