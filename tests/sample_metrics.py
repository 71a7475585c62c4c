"""Metrics as users write them, for the tests of `--metric`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.metrics import fbeta_score, log_loss

factor = 2


def error_rate(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
    return float((predictions != labels).mean())


def f2(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> np.float64:
    return fbeta_score(labels, predictions, beta=factor, average="macro", zero_division=0)


def order(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Depends on the order of the examples."""
    weights = np.arange(len(labels))
    return {"labels": int((labels * weights).sum()), "top": float((probabilities.max(axis=1) * weights).sum())}


def talks(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
    print("so many labels")
    return float(labels.sum())


def draws(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
    return float(np.random.default_rng().random())


def changes_labels(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
    labels[:] = predictions
    return float((predictions == labels).mean())


def nan(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
    return math.nan


def fails_on_many(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
    if len(labels) > 30:
        raise RuntimeError("too many for me")
    return 1.0


def raises(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
    raise KeyError("no such class")


def gives_none(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> None:
    return None


def gives_text(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> str:
    return "0.5"


def gives_an_array(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    return predictions == labels


def gives_a_nested_dict(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> dict[str, Any]:
    return {"a": {"b": 1.0}}


def accuracy(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
    return 1.0


def mean_absolute(predictions: np.ndarray, labels: np.ndarray, probabilities: None) -> float:
    assert probabilities is None
    return float(np.abs(predictions - labels).mean())


def hits(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> int:
    return int((predictions == labels).sum())


def sure_loss(predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
    return log_loss(labels, probabilities, labels=range(probabilities.shape[1]))


def contains(text: str, references: list[str]) -> bool:
    return any(reference in text for reference in references)


def length(text: str, references: list[str]) -> int:
    return len(text)


def length_of_nothing(text: str, references: list[str]) -> float:
    return math.nan


def share_of_short_ones(text: str, references: list[str]) -> float:
    """Fails for an empty text."""
    return 1 / len(text.split())


class NoFunction:
    def update(self, predictions: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> float:
        return 1.0
