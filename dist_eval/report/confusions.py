"""Which classes or labels an evaluation confuses, as a section of its document, and its worst mistakes, as a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_eval.analysis.mistakes import worst_mistakes
from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.report.document import Mistakes, Number, Plot, ReportOptions, Rows, Section, Table
from dist_eval.results.run import EvaluationResults
from dist_eval.results.scores import ClassResults, ConfusionMatrix
from dist_eval.runs.plots import confusion_cells, draw_confusion_matrix
from dist_eval.runs.reading import FinishedRun

LABEL_WIDTH = 30  # characters of a label on a terminal
_CLASSES_IN_MATRIX, _CONFUSIONS, _CONFUSIONS_IN_SUMMARY, _LABELS_SHOWN = 24, 20, 5, 10


def frequent_confusions(results: EvaluationResults) -> tuple[list[tuple[int, int, int]], int]:
    """Returns (true class, predicted class, examples) of the most frequent confusions, and how many kinds there are."""
    if results.problem_type != SINGLE_LABEL.name or results.confusion_matrix is None:
        return [], 0
    cells = confusion_cells(results.confusion_matrix).tocoo()
    wrong = np.flatnonzero((cells.row != cells.col) & (cells.data > 0))
    most = wrong[np.argsort(-cells.data[wrong], kind="stable")[:_CONFUSIONS]]
    return [*zip(*(part[most].tolist() for part in (cells.row, cells.col, cells.data)), strict=True)], len(wrong)


def confusion_sections(
    results: EvaluationResults, confusions: Sequence[tuple[int, int, int]], kinds: int
) -> list[Section]:
    """Returns the section about confusions (see `frequent_confusions`); none of a regression."""
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
            [names[label], names[prediction], Number(str(count)), Number(f"{100 * count / support[label]:.1f} %")]
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


def _label_counts(matrix: Sequence[Sequence[int]]) -> list[Number]:
    (right_no, wrong_yes), (wrong_no, right_yes) = matrix
    yes, no = right_yes + wrong_no, right_no + wrong_yes
    counts = [(right_yes, yes), (wrong_no, yes), (wrong_yes, no), (right_no, no)]
    return [Number(str(count), f" {100 * count / total:.1f} %" if total else "") for count, total in counts]


def find_mistakes(run: FinishedRun, confusions: Sequence[tuple[int, int]], options: ReportOptions) -> Mistakes:
    """Lists the worst mistakes of a run, up to a number of each of its most frequent confusions."""
    problem = run.results.problem_type
    is_regression = problem == REGRESSION.name
    of_each_pair = options.most // (2 * max(1, len(confusions)))
    total, mistakes = worst_mistakes(run.predictions(), options.most, confusions, of_each_pair)
    texts = run.texts({mistake.index for mistake in mistakes}, options.dataset) if options.texts else {}
    score = "loss" if is_regression else "probability"
    rows = [
        [
            f"#{mistake.index}",
            _format_label(mistake.label, problem, run.results.label_names),
            _format_label(mistake.prediction, problem, run.results.label_names),
            f"{score} {mistake.score:.4g}",
            _cut(texts.get(mistake.index, ""), options.longest),
        ]
        for mistake in mistakes
    ]
    return Mistakes(
        "Largest errors" if is_regression else "Mistakes",
        _note(total, len(rows), options, of_each_pair if confusions else 0, is_regression=is_regression),
        rows,
        "true" if problem == SINGLE_LABEL.name else "label",
    )


def _note(total: int, shown: int, options: ReportOptions, of_each_pair: int, *, is_regression: bool) -> str:
    if not total:
        return "There are none."
    words = f"{total} mistakes, the most confident first."
    if is_regression:
        words = f"{total} examples, those with the largest loss first."
    if shown < total:
        which = f"The first {shown}"
        if of_each_pair:
            which = f"{shown} of them, up to {of_each_pair} of each of the most frequent confusions among them,"
        words += f" {which} are in this file, all in predictions.parquet."
    if options.texts:
        return f"{words} Texts are cut after {options.longest} characters."
    return f"{words} Their texts are not in this file: dist-eval report RUN --texts adds them."


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + " […]"


def _format_label(label: Any, problem: str, names: Sequence[str]) -> str:
    """Formats a label or a prediction: an int64, or an array of shape [num_labels] of several labels or outputs."""
    if problem == SINGLE_LABEL.name:
        return names[int(label)]
    if problem == MULTI_LABEL.name:
        present = [names[number] for number in np.flatnonzero(label).tolist()]
        more = [f"and {len(present) - _LABELS_SHOWN} more"] if len(present) > _LABELS_SHOWN else []
        return ", ".join([*present[:_LABELS_SHOWN], *more]) or "none"
    return ", ".join(f"{number:.6g}" for number in label[:_LABELS_SHOWN])
