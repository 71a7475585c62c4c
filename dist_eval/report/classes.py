"""Sections about classes, labels and outputs: metrics, confusions, each class, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_eval.metrics.catalogue import OF_CLASS, OF_OUTPUT
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.report.document import Number, Plot, Rows, Section, Table, format_interval, format_metric, metric_number
from dist_eval.results.run import CompleteRun
from dist_eval.results.scores import Calibration, CalibrationBin, ClassResults, ConfusionMatrix, OutputResults
from dist_eval.runs.plots import confusion_cells, draw_confusion_matrix, draw_reliability
from dist_eval.tables import Footnotes

_LABELS_SHOWN, _LONG_TABLE, _ROWS_IN_SUMMARY = 10, 40, 30
_CLASSES_IN_MATRIX, _CONFUSIONS, _CONFUSIONS_IN_SUMMARY = 24, 20, 5
_LABEL_WIDTH = 30  # characters of a label on a terminal


def metric_table(caption: str, names: Sequence[str], results: CompleteRun, **options: Any) -> Table:
    """Returns a table of metrics; `options` are those of `Table`."""
    notes = Footnotes()
    rows: Rows = [[name, metric_number(name, results, notes)] for name in names]
    columns = ["metric", f"value [{100 * results.confidence:g}% interval]"]
    return Table(caption, columns, rows, notes.lines(), **options)


def frequent_confusions(results: CompleteRun) -> tuple[list[tuple[int, int, int]], int]:
    """Returns (true class, predicted class, examples) of the most frequent confusions, and the number of all kinds."""
    if results.problem_type != SINGLE_LABEL.name or results.confusion_matrix is None:
        return [], 0
    cells = confusion_cells(results.confusion_matrix).tocoo()
    wrong = np.flatnonzero((cells.row != cells.col) & (cells.data > 0))
    most = wrong[np.argsort(-cells.data[wrong], kind="stable")[:_CONFUSIONS]]
    return [*zip(*(part[most].tolist() for part in (cells.row, cells.col, cells.data)), strict=True)], len(wrong)


def confusion_sections(results: CompleteRun, confusions: Sequence[tuple[int, int, int]], kinds: int) -> list[Section]:
    """Returns the section about confusions (see `frequent_confusions`); none for a regression."""
    matrix, names = results.confusion_matrix, results.label_names
    if results.problem_type == SINGLE_LABEL.name and matrix is not None:
        lines = []
        if len(names) > _CLASSES_IN_MATRIX + 1:
            lines.append(f"The plot shows the {_CLASSES_IN_MATRIX} of {len(names)} classes with the most mistakes.")
        if omitted := getattr(matrix, "omitted", 0):
            lines.append(f"Cells with few examples are left out ({omitted} examples in all).")
        plot = Plot(
            "Confusion matrix: examples by true class (rows) and predicted class (columns)",
            lambda: draw_confusion_matrix(results, _CLASSES_IN_MATRIX),
        )
        support = [row.support for row in results.per_class if isinstance(row, ClassResults)]
        rows: Rows = [
            [names[label], names[prediction], Number(str(count)), Number(f"{100 * count / support[label]:.1f}%")]
            for label, prediction, count in confusions
        ]
        table = Table(
            "Most frequent confusions",
            ["true class", "predicted class", "examples", "share of the true class"],
            rows,
            keys=2,
            summary_rows=_CONFUSIONS_IN_SUMMARY,
            filters_mistakes=True,
            further_rows=kinds - len(confusions),
            longest_text=_LABEL_WIDTH,
        )
        return [Section("Confusion", [plot, table], lines)]
    if results.problem_type == MULTI_LABEL.name and isinstance(matrix, ConfusionMatrix):
        line = "Each cell has the number of examples, and its share of those with the label or of those without it."
        columns = ["label", "present, predicted", "present, missed", "absent, predicted", "absent, not predicted"]
        matrices: Any = matrix.matrix
        table = Table(
            "Predictions of each label",
            columns,
            [[name, *_label_counts(counts)] for name, counts in zip(names, matrices, strict=True)],
        )
        return [Section("Confusion", [table], [line])]
    return []


def _label_counts(matrix: Sequence[Sequence[int]]) -> list[Number]:
    (right_no, wrong_yes), (wrong_no, right_yes) = matrix
    yes, no = right_yes + wrong_no, right_no + wrong_yes
    counts = [(right_yes, yes), (wrong_no, yes), (wrong_yes, no), (right_no, no)]
    return [Number(str(count), f" {100 * count / total:.1f}%" if total else "") for count, total in counts]


def class_sections(results: CompleteRun) -> list[Section]:
    """Returns the section with the metrics of each class, label or output; none for a single output."""
    is_regression, notes = results.problem_type == REGRESSION.name, Footnotes()
    if is_regression and len(results.per_class) < 2:
        return []
    what = "output" if is_regression else "label" if results.problem_type == MULTI_LABEL.name else "class"
    columns = OF_OUTPUT if is_regression else (*OF_CLASS, "support")
    rows: Rows = [[row.label, *(_class_number(name, row, notes) for name in columns)] for row in results.per_class]
    table = Table(
        f"By {what}, with {100 * results.confidence:g}% intervals",
        [what, *columns],
        rows,
        notes.lines(),
        is_folded=len(rows) > _LONG_TABLE,
        summary_rows=_ROWS_IN_SUMMARY,
        values_caption=f"By {what}",
        longest_text=_LABEL_WIDTH,
    )
    return [Section(f"By {what}", [table])]


def _class_number(name: str, row: ClassResults | OutputResults, notes: Footnotes) -> Number:
    value, interval = getattr(row, name), getattr(row.intervals, name, None)  # None for the support
    text = "-" if value is None else str(value) if name == "support" else format_metric(name, value)
    return Number(text, "" if interval is None else format_interval(name, interval, notes))


def calibration_sections(results: CompleteRun) -> list[Section]:
    """Returns the section about calibration; none for a regression."""
    calibration = results.calibration
    if calibration is None:
        return []
    rows = calibration.per_label or []
    means = ", means over the labels" if rows else ""
    parts: list[Table | Plot] = [
        metric_table(f"Expected calibration error and Brier score{means}", ["ece", "brier"], results),
        Plot("Reliability diagram: accuracy by mean confidence, with intervals", lambda: draw_reliability(calibration)),
        *_bin_tables(calibration),
    ]
    if rows:
        numbers: Rows = [[row.label, Number(f"{row.ece:.4f}"), Number(f"{row.brier:.4f}")] for row in rows]
        parts.insert(1, Table("Calibration by label", ["label", "ece", "brier"], numbers))
    ideal = "a label is as frequent as the model says" if rows else "accuracy equals confidence"
    return [Section("Calibration", parts, [f"On the dashed line of a diagram, {ideal}."])]


def _bin_tables(calibration: Calibration) -> list[Table]:
    if calibration.bins is not None:
        return [_bin_table("Reliability by confidence", ("confidence", "accuracy"), calibration.bins)]
    return [
        _bin_table(f"Reliability of {row.label}", ("probability", "share of positives"), row.bins, is_folded=True)
        for row in (calibration.per_label or [])[:_LABELS_SHOWN]
    ]


def _bin_table(caption: str, heads: tuple[str, str], bins: Sequence[CalibrationBin], **options: Any) -> Table:
    notes = Footnotes()
    rows: Rows = [
        [
            f"{bin_.low:.2f} to {bin_.high:.2f}",
            Number(str(bin_.n)),
            Number(f"{bin_.mean_confidence:.4f}"),
            Number(f"{bin_.accuracy:.4f}", format_interval("accuracy", bin_.interval, notes)),
        ]
        for bin_ in bins
        if bin_.n
    ]
    return Table(caption, [heads[0], "examples", "mean", heads[1]], rows, notes.lines(), **options)
