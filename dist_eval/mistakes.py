"""The mistakes that a classifier was surest of: often wrong labels, or what it has not understood. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_eval.predictions import Scored
from dist_eval.problems import REGRESSION, SINGLE_LABEL

MOST = 20
"""How many are listed."""


def confident_mistakes(
    predictions: Scored, label_names: Sequence[str], most: int = MOST
) -> list[dict[str, Any]] | None:
    """Returns the section `confident_mistakes` of `results.json`: the surest first, of equally sure ones the first.

    Args:
        predictions: in dataset order.
        label_names: of the classes or labels.
        most: how many.

    Returns:
        For each its position in the dataset, the names of its true and its predicted class, and that one's probability.
        With several labels each, `label` and `prediction` are lists, and the probability is that of the surest wrong
        one of its answers, yes or no. None for a regression, whose outputs are no probabilities.
    """
    if predictions.problem is REGRESSION:
        return None
    places, surest = np.empty(0, dtype=np.int64), np.empty(0)
    start = 0
    for piece in predictions.pieces():
        wrong, probability = _wrong(piece)
        places, surest = np.concatenate([places, start + wrong]), np.concatenate([surest, probability])
        kept = np.argsort(-surest, kind="stable")[:most]
        places, surest = places[kept], surest[kept]
        start += len(piece)
    chosen = predictions.at(places)
    return [
        {
            "index": int(chosen.index[row]),
            "label": _names(chosen.label[row], label_names),
            "prediction": _names(chosen.prediction[row], label_names),
            "probability": float(surest[row]),
        }
        for row in range(len(places))
    ]


def _wrong(piece: Scored) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places of the mistakes, and how sure they were."""
    label, prediction, probabilities = piece.label, piece.prediction, piece.probabilities
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
