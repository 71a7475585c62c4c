"""Which classes or labels an evaluation confuses, as a section of its document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_eval.data.problem_types import MULTI_LABEL, SINGLE_LABEL
from dist_eval.report.document import Number, Plot, Rows, Section, Table
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import ClassResults, ConfusionMatrix
from dist_eval.runs.plots import confusion_cells, draw_confusion_matrix

LABEL_WIDTH = 30
"""Characters of a label on a terminal."""

_CLASSES_IN_MATRIX, _CONFUSIONS, _CONFUSIONS_IN_SUMMARY = 24, 20, 5


def frequent_confusions(results: EvaluationResults) -> tuple[list[tuple[int, int, int]], int]:
    """Finds the most frequent confusions of single labels.

    Returns:
        True class, predicted class and number of examples of each of them, the most frequent first, and how many kinds
        of confusion there are in all.
    """
    if results.problem_type != SINGLE_LABEL.name or results.confusion_matrix is None:
        return [], 0
    cells = confusion_cells(results.confusion_matrix).tocoo()
    wrong = np.flatnonzero((cells.row != cells.col) & (cells.data > 0))
    most = wrong[np.argsort(-cells.data[wrong], kind="stable")[:_CONFUSIONS]]
    return [*zip(*(part[most].tolist() for part in (cells.row, cells.col, cells.data)), strict=True)], len(wrong)


def confusion_sections(
    results: EvaluationResults, confusions: Sequence[tuple[int, int, int]], kinds: int
) -> list[Section]:
    """Returns the section about confusions; none of a regression.

    Args:
        results: of the run.
        confusions: see `frequent_confusions`.
        kinds: how many kinds of confusion there are.
    """
    matrix, names = results.confusion_matrix, results.label_names
    if results.problem_type == SINGLE_LABEL.name and matrix is not None:
        lines = []
        if len(names) > _CLASSES_IN_MATRIX + 1:
            lines.append(f"Of {len(names)} classes those {_CLASSES_IN_MATRIX} with the most mistakes are drawn.")
        if omitted := getattr(matrix, "omitted", 0):
            lines.append(f"Cells with few examples, {omitted} in all, are left out.")
        plot = Plot(
            "Confusion matrix: examples by true class (rows) and predicted class (columns)",
            lambda: draw_confusion_matrix(results, _CLASSES_IN_MATRIX),
        )
        support = [row.support for row in results.per_class if isinstance(row, ClassResults)]
        rows: Rows = [
            [names[label], names[prediction], *_count_and_share(count, support[label])]
            for label, prediction, count in confusions
        ]
        table = Table(
            "Most frequent confusions",
            ["true class", "predicted class", "examples", "of the true class"],
            rows,
            keys=2,
            summary_rows=_CONFUSIONS_IN_SUMMARY,
            filters_mistakes=True,
            further_rows=kinds - len(confusions),
            longest_text=LABEL_WIDTH,
        )
        return [Section("Confusion", [plot, table], lines)]
    if results.problem_type == MULTI_LABEL.name and isinstance(matrix, ConfusionMatrix):
        line = "Each cell has the number of examples, and its share of those that have the label, or that do not."
        columns = ["label", "there, found", "there, missed", "not there, predicted", "not there, left out"]
        matrices: Any = matrix.matrix
        table = Table(
            "What became of each label",
            columns,
            [[name, *_label_counts(counts)] for name, counts in zip(names, matrices, strict=True)],
        )
        return [Section("Confusion", [table], [line])]
    return []


def _count_and_share(count: int, total: int) -> list[Number]:
    return [Number(str(count)), Number(f"{100 * count / total:.1f} %")]


def _label_counts(matrix: Sequence[Sequence[int]]) -> list[Number]:
    (right_no, wrong_yes), (wrong_no, right_yes) = matrix
    yes, no = right_yes + wrong_no, right_no + wrong_yes
    counts = [(right_yes, yes), (wrong_no, yes), (wrong_yes, no), (right_no, no)]
    return [Number(str(count), f" {100 * count / total:.1f} %" if total else "") for count, total in counts]
