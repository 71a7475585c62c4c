"""Mistakes, worst first. The most confident ones are often label errors. Free of side effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_eval.data.problem_types import REGRESSION, SINGLE_LABEL
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.results.scores import ConfidentMistake

MOST = 20
"""Maximum number listed in `results.json`."""


@dataclass(frozen=True)
class Mistake:
    """A misclassified example; in a regression any example.

    Attributes:
        index: position in the dataset.
        label: true label: an int64, or an array of several labels or outputs.
        prediction: predicted label, like `label`.
        score: the sort key, largest first.
    """

    index: int
    label: Any
    prediction: Any
    score: float


@dataclass(frozen=True)
class Mistakes:
    """The worst mistakes.

    Attributes:
        total: number of all mistakes.
        worst: the worst of them.
    """

    total: int
    worst: list[Mistake]


def worst_mistakes(
    pieces: Iterable[PredictionsLike], most: int, pairs: Sequence[tuple[int, int]] = (), of_each_pair: int = 0
) -> Mistakes:
    """Finds the worst mistakes; ties are in dataset order.

    Args:
        pieces: chunks of all predictions, in dataset order.
        most: maximum number of mistakes to return.
        pairs: pairs of a true and a predicted class, whose worst mistakes are included even if many others are worse.
        of_each_pair: number reserved for each pair, in total at most `most`.

    Returns:
        Mistakes by the probability of the predicted class; in a multi-label problem by that of the most confident wrong
        decision for a label. In a regression, whose outputs are not probabilities, examples by their loss.
    """
    total, columns = 0, None
    for piece in pieces:
        wrong, score = _wrong(piece)
        total += len(wrong)
        found = [piece.index[wrong], piece.label[wrong], piece.prediction[wrong], score]
        columns = found if columns is None else [np.concatenate(both) for both in zip(columns, found, strict=True)]
        order = np.argsort(-columns[-1], kind="stable")
        columns = [column[order] for column in columns]
        reserved = np.zeros(len(order), dtype=bool)
        for label, prediction in pairs:
            reserved[np.flatnonzero((columns[1] == label) & (columns[2] == prediction))[:of_each_pair]] = True
        kept = np.sort(np.concatenate([np.flatnonzero(reserved), np.flatnonzero(~reserved)])[:most])
        columns = [column[kept] for column in columns]
    rows = zip(*columns, strict=True) if columns else ()
    return Mistakes(total, [Mistake(int(index), label, given, float(score)) for index, label, given, score in rows])


def confident_mistakes(
    predictions: PredictionsLike, label_names: Sequence[str], most: int = MOST
) -> list[ConfidentMistake] | None:
    """Returns the section `confident_mistakes` of `results.json` (see `worst_mistakes`).

    Args:
        predictions: predictions in dataset order.
        label_names: names of the classes or labels.
        most: maximum number of mistakes.

    Returns:
        For each mistake the position in the dataset, the names of the true and the predicted class, and the probability
        of the latter. In a multi-label problem `label` and `prediction` are lists. None for a regression.
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
        for one in worst_mistakes(predictions.pieces(), most).worst
    ]


def _wrong(piece: PredictionsLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the mistakes, and their scores."""
    label, prediction = piece.label, piece.prediction
    if piece.problem is REGRESSION:
        return np.arange(len(piece)), piece.loss
    probabilities = piece.probabilities
    if piece.problem is SINGLE_LABEL:
        wrong = np.flatnonzero(label != prediction)
        return wrong, probabilities[wrong, prediction[wrong]]
    sure = np.where(label == prediction, 0.0, np.maximum(probabilities, 1 - probabilities)).max(axis=1)
    wrong = np.flatnonzero(sure)
    return wrong, sure[wrong]


def _names(label: Any, names: Sequence[str]) -> str | list[str]:
    if np.ndim(label) == 0:
        return names[int(label)]
    return [names[number] for number in np.flatnonzero(label).tolist()]
