"""Mistakes, worst first. The most confident ones are often label errors. Free of side effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import REGRESSION, SINGLE_LABEL
from dist_eval.results.scores import ConfidentMistake

# maximum number listed in `results.json`
MOST = 20


@dataclass(frozen=True)
class Mistake:
    """A misclassified example; in a regression any example."""

    index: int  # position in the dataset
    label: Any  # an int64, or an array of several labels or outputs
    prediction: Any  # like `label`
    score: float  # the sort key, largest first


def worst_mistakes(
    chunks: Iterable[Predictions], most: int, pairs: Sequence[tuple[int, int]] = (), of_each_pair: int = 0
) -> tuple[int, list[Mistake]]:
    """Counts the mistakes and finds the `most` worst ones; ties are in dataset order, as are the chunks.

    Mistakes are ordered by the probability of the predicted class, in a multi-label problem by that of the most
    confident wrong decision for a label. In a regression, whose outputs are not probabilities, all examples are ordered
    by loss.

    The worst `of_each_pair` mistakes of each pair of a true and a predicted class are included even if many others are
    worse, but in total at most `most`.
    """
    total, columns = 0, None
    for chunk in chunks:
        wrong, score = _wrong(chunk)
        total += len(wrong)
        found = [chunk.index[wrong], chunk.label[wrong], chunk.prediction[wrong], score]
        columns = found if columns is None else [np.concatenate(both) for both in zip(columns, found, strict=True)]
        order = np.argsort(-columns[-1], kind="stable")
        columns = [column[order] for column in columns]
        reserved = np.zeros(len(order), dtype=bool)
        for label, prediction in pairs:
            reserved[np.flatnonzero((columns[1] == label) & (columns[2] == prediction))[:of_each_pair]] = True
        kept = np.sort(np.concatenate([np.flatnonzero(reserved), np.flatnonzero(~reserved)])[:most])
        columns = [column[kept] for column in columns]
    rows = zip(*columns, strict=True) if columns else ()
    return total, [Mistake(int(index), label, given, float(score)) for index, label, given, score in rows]


def confident_mistakes(predictions: Predictions, label_names: Sequence[str]) -> list[ConfidentMistake] | None:
    """Returns the section `confident_mistakes` of `results.json` (see `worst_mistakes`); None for a regression.

    In a multi-label problem `label` and `prediction` are lists.
    """
    if predictions.problem is REGRESSION:
        return None
    return [
        ConfidentMistake(
            index=one.index,
            label=_names(one.label, label_names),
            prediction=_names(one.prediction, label_names),
            probability=one.score,
        )
        for one in worst_mistakes(predictions.chunks(), MOST)[1]
    ]


def _wrong(chunk: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the mistakes, and their scores."""
    label, prediction = chunk.label, chunk.prediction
    if chunk.problem is REGRESSION:
        return np.arange(len(chunk)), chunk.loss
    probabilities = chunk.probabilities
    if chunk.problem is SINGLE_LABEL:
        wrong = np.flatnonzero(label != prediction)
        return wrong, probabilities[wrong, prediction[wrong]]
    sure = np.where(label == prediction, 0.0, np.maximum(probabilities, 1 - probabilities)).max(axis=1)
    wrong = np.flatnonzero(sure)
    return wrong, sure[wrong]


def _names(label: Any, names: Sequence[str]) -> str | list[str]:
    if np.ndim(label) == 0:
        return names[int(label)]
    return [names[number] for number in np.flatnonzero(label).tolist()]
