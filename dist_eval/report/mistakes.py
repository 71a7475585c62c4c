"""The worst mistakes of an evaluation, as a list for its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_eval.analysis.mistakes import worst_mistakes
from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from dist_eval.report.document import Contents, Mistakes
from dist_eval.runs.reading import FinishedRun

_LABELS_SHOWN = 10


def find_mistakes(run: FinishedRun, confusions: Sequence[tuple[int, int]], contents: Contents) -> Mistakes:
    """Lists the worst mistakes of a run, up to a number of each of its most frequent confusions."""
    problem = run.results.problem_type
    is_regression = problem == REGRESSION.name
    of_each_pair = contents.most // (2 * max(1, len(confusions)))
    mistakes = worst_mistakes(run.predictions(), contents.most, confusions, of_each_pair)
    texts = run.texts({mistake.index for mistake in mistakes.worst}, contents.dataset) if contents.texts else {}
    score = "loss" if is_regression else "probability"
    rows = [
        [
            f"#{mistake.index}",
            _format_label(mistake.label, problem, run.results.label_names),
            _format_label(mistake.prediction, problem, run.results.label_names),
            f"{score} {mistake.score:.4g}",
            _cut(texts.get(mistake.index, ""), contents.longest),
        ]
        for mistake in mistakes.worst
    ]
    return Mistakes(
        "Largest errors" if is_regression else "Mistakes",
        _note(mistakes.total, len(rows), contents, of_each_pair if confusions else 0, is_regression=is_regression),
        rows,
        "true" if problem == SINGLE_LABEL.name else "label",
    )


def _note(total: int, shown: int, contents: Contents, of_each_pair: int, *, is_regression: bool) -> str:
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
    if contents.texts:
        return f"{words} Texts are cut after {contents.longest} characters."
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
