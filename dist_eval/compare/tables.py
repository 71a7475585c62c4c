"""Formats comparisons: as text tables, as JSON, and as a CSV file of the changed predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_eval.compare.comparing import Comparison, GroupedTest
from dist_eval.errors import RunError, os_reason
from dist_eval.printable import printable_lines
from dist_eval.tables import Footnotes, csv_text, format_count, text_table

if TYPE_CHECKING:
    from dist_eval.compare.compared_run import Run
    from dist_eval.statistics import McNemar, PairedDifference

_LEAST_P = 1e-300  # below this the tails of the distributions are not accurate
_HEAD_WIDTH = 28
_ROUNDING = 1 + 1e-9
_REGRESSION = "regression"
_CHANGES = {(True, False): "gained", (False, True): "lost", (False, False): "still wrong"}
_CHANGES_OF_VALUES = {(True, False): "nearer", (False, True): "farther", (False, False): "as far"}


def format_comparisons(comparisons: Sequence[Comparison]) -> str:
    """Returns the comparisons as text tables."""
    first = comparisons[0].first
    runs = [first, *(one.run for one in comparisons)]
    is_part = any(len(run.predictions) < run.results.coverage.seen for run in runs)
    which = ", those that all of the runs evaluated" if is_part else ""
    lines = [
        f"{format_count(len(first.predictions), 'example')} of {first.results.data.source}{which}; compared with "
        f"{first.folder}"
    ]
    names = short_names([run.folder for run in runs])
    family = sum(value is not None for one in comparisons for value in one.corrected.values())
    for one, name_of_run in zip(comparisons, names[1:], strict=True):
        notes = Footnotes()
        confidence = next((difference.interval.confidence for difference in one.differences.values()), None)
        heads = (_head(name, run) for name, run in ((names[0], first), (name_of_run, one.run)))
        head = ["", *heads, _with_confidence("difference", confidence), "p", f"p (Holm, {family})"]
        table = [head, *metric_rows(one, notes)]
        lines += ["", f"{one.run.folder}: {words_of_changes(one)}", *words_of_test(one, len(comparisons), "runs")]
        lines += [*text_table(table), *notes.lines()]
    return printable_lines("\n".join(lines))


def metric_rows(one: Comparison, notes: Footnotes) -> list[list[str]]:
    """Returns for each metric: name, values in both runs, difference, p-value before and after Holm's procedure."""
    rows = []
    for name, difference in one.differences.items():
        figures = (_metric(run, name, notes) for run in (one.first, one.run))
        corrected = one.corrected[name]
        p_values = (
            p_words(difference.p_value, difference),
            p_words(corrected, difference) + _too_coarse(one, name, notes),
        )
        rows.append([name, *figures, signed_words(name, difference, notes), *p_values])
    return rows


def short_names(folders: Sequence[Path]) -> list[str]:
    """Returns the shortest distinct suffixes of paths, abbreviated if they are too long."""
    return [end if len(end) <= _HEAD_WIDTH else f"...{end[3 - _HEAD_WIDTH :]}" for end in distinct_ends(folders)]


def distinct_ends(paths: Sequence[Path]) -> list[str]:
    """Returns the shortest distinct suffixes of paths."""
    ends = [str(path) for path in paths]
    for parts in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        ends = [str(Path(*path.parts[-parts:])) for path in paths]
        if len(set(ends)) == len(set(paths)):
            break
    return ends


def words_of_test(one: Comparison, many: int, what: str) -> list[str]:
    """Returns a line on the test of equal accuracy, none without one.

    Args:
        one: the comparison.
        many: number of comparisons that Holm's procedure takes into account.
        what: what they are, in the plural.
    """
    if one.test is None:
        return []
    also = f", by Holm's procedure for {many} {what} {p_words(one.test_corrected)}" if many > 1 else ""
    return [f"{_name_of(one.test)}: p = {p_words(one.test.p_value)}{also}"]


def words_of_changes(one: Comparison) -> str:
    """Returns how many predictions changed, and in which direction."""
    changed, improved, worsened = (
        int(mask.sum()) for mask in (one.changes.changed, one.changes.improved, one.changes.worsened)
    )
    words = f"{format_count(changed, 'prediction')} changed, {improved} of them"
    if one.run.problem == _REGRESSION:
        return f"{words} are nearer to their labels, {worsened} farther away"
    wrong, right = ("wrong", "right") if one.run.problem.startswith("single") else ("not all right", "all right")
    return f"{words} from {wrong} to {right}, {worsened} from {right} to {wrong}"


def _head(name: str, run: Run) -> str:
    return _with_confidence(name, run.confidence)


def _with_confidence(words: str, confidence: float | None) -> str:
    return words if confidence is None else f"{words} [{100 * confidence:g}%]"


def _name_of(test: McNemar | GroupedTest) -> str:
    if not isinstance(test, GroupedTest):
        return f"McNemar's test ({test.method})"
    why = f" ({test.reason})" if test.reason else ""
    return f"paired bootstrap of {test.metric} over {format_count(test.count, 'group')} of {test.column!r}{why}"


def _metric(run: Run, name: str, notes: Footnotes) -> str:
    from dist_eval.metrics.words import interval_words, metric_words

    value, interval = run.metrics[name], run.results.intervals.get(name)
    if value is None:
        return f"-{notes.mark(run.results.undefined.get(name))}"
    return metric_words(name, value) + (interval_words(name, interval, notes) if interval else "")


def signed_words(name: str, difference: PairedDifference, notes: Footnotes) -> str:
    """Returns a difference with its sign and its interval, or the number of the footnote with the reason."""
    from dist_eval.metrics.words import metric_words

    def signed(value: float) -> str:
        return ("+" if value >= 0 else "") + metric_words(name, value)

    value, interval = difference.value, difference.interval
    if value is None:
        return f"-{notes.mark(interval.reason)}"
    if interval.limits is None:
        return f"{signed(value)}{notes.mark(interval.reason)}"
    low, high = interval.limits
    return f"{signed(value)} [{signed(low)}, {signed(high)}]"


def _least_p(difference: PairedDifference) -> float:
    """Returns the smallest p-value possible with the number of resamples, 0 without resamples."""
    resamples = difference.interval.resamples
    return 1 / (resamples + 1) if resamples else 0.0


def _too_coarse(one: Comparison, name: str, notes: Footnotes) -> str:
    """Marks a p-value that is as small as its resamples allow, but not significant after adjustment."""
    difference, corrected = one.differences[name], one.corrected[name]
    if corrected is None or difference.p_value is None or difference.p_value > _least_p(difference) * _ROUNDING:
        return ""
    if corrected <= 1 - difference.interval.confidence:
        return ""
    return notes.mark(f"{difference.interval.resamples} resamples allow no smaller p-value; --resamples sets more")


def p_words(value: float | None, difference: PairedDifference | None = None) -> str:
    """Formats a p-value, as an upper bound if more resamples could make it smaller."""
    if value is None:
        return "-"
    if difference is not None and difference.p_value is not None:
        is_bound = 0 < difference.p_value <= _least_p(difference) * _ROUNDING
        return ("<=" if is_bound and value < 1 else "") + p_words(value)
    if value < _LEAST_P:
        return f"<{_LEAST_P:.0e}"
    return f"{value:.4f}" if value >= 1e-4 else f"{value:.0e}"


def to_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Returns the content of the tables as JSON-compatible objects."""
    first = comparisons[0].first
    return {
        "examples": len(first.predictions),
        "source": first.results.data.source,
        "problem_type": first.problem,
        "compared_with": str(first.folder),
        "metrics": first.metrics,
        "intervals": _intervals(first),
        "runs": [
            {
                "run": str(one.run.folder),
                "metrics": one.run.metrics,
                "intervals": _intervals(one.run),
                "changed": int(one.changes.changed.sum()),
                "improved": int(one.changes.improved.sum()),
                "worsened": int(one.changes.worsened.sum()),
                "mcnemar": None if isinstance(one.test, GroupedTest) else _test_to_json(one),
                "paired_bootstrap_of_groups": _test_to_json(one) if isinstance(one.test, GroupedTest) else None,
                "differences": {
                    name: {
                        **asdict(difference),
                        "interval": difference.interval.to_json(),
                        "p_value_holm": one.corrected[name],
                    }
                    for name, difference in one.differences.items()
                },
            }
            for one in comparisons
        ],
    }


def _intervals(run: Run) -> dict[str, Any]:
    return {name: interval.to_json() for name, interval in run.results.intervals.items()}


def _test_to_json(one: Comparison) -> dict[str, Any] | None:
    return None if one.test is None else {**asdict(one.test), "p_value_holm": one.test_corrected}


def write_changed(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Writes the examples whose prediction changed, as a CSV file.

    Its columns are run, index (position in the dataset), label, before, after (names of classes or values of a
    regression; several labels or outputs are joined by a semicolon), and change ("gained", "lost" or "still wrong"; in
    a regression "nearer", "farther" or "as far"). Names that a spreadsheet would compute follow an apostrophe.

    Raises:
        RunError: the file cannot be written.
    """
    import csv

    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["run", "index", "label", "before", "after", "change"])
            for one in comparisons:
                run = csv_text(str(one.run.folder))
                first, second, names = one.first.predictions, one.run.predictions, one.first.label_names
                for row in one.changes.changed.nonzero()[0]:
                    cells = (first.label[row], first.prediction[row], second.prediction[row])
                    labels = (_label_words(cell, names) for cell in cells)
                    writer.writerow([run, first.index[row], *labels, change_words(one, int(row))])
    except OSError as error:
        raise RunError(f"--changed {path}: cannot be written ({os_reason(error)}).") from error


def change_words(one: Comparison, row: int) -> str:
    """Returns what became of an example whose prediction changed: gained, lost or still wrong, or how much nearer."""
    words = _CHANGES_OF_VALUES if one.run.problem == _REGRESSION else _CHANGES
    return words[bool(one.changes.improved[row]), bool(one.changes.worsened[row])]


def _label_words(label: Any, names: Sequence[str]) -> str:
    """Formats a label or a prediction, an element or a row of its column, for CSV."""
    if label.dtype.kind == "f":
        return ";".join(repr(float(value)) for value in label)
    if label.dtype.kind == "b":
        return ";".join(csv_text(names[number]) for number in label.nonzero()[0])
    return csv_text(names[int(label)])
