"""Metrics: predictions → confusion matrix → figures; scikit-learn computes. Pure: no process group, no model.

What the data leave undefined (the recall of a class without examples, an AUC of one class) is `None`, and
`undefined` says why; nothing is replaced by a made-up 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_eval.errors import ExactnessError
from dist_eval.predictions import Predictions

_LOSS_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Totals:
    """Sums over examples that can be added up over batches and ranks.

    Attributes:
        counts: examples and correct ones, int64 of shape [2].
        confusion: examples by true class (row) and predicted class (column), int64 of shape [classes, classes].
        loss: sum of the losses in nats, float64 of shape [1].
    """

    counts: np.ndarray
    confusion: np.ndarray
    loss: np.ndarray

    @classmethod
    def of(cls, predictions: Predictions) -> Totals:
        """Sums predictions up, possibly of no example."""
        label, prediction, classes = predictions.label, predictions.prediction, predictions.num_labels
        confusion = np.bincount(label * classes + prediction, minlength=classes * classes)
        return cls(
            counts=np.asarray([len(label), (label == prediction).sum()], dtype=np.int64),
            confusion=confusion.reshape(classes, classes).astype(np.int64),
            loss=np.asarray([predictions.loss.sum()], dtype=np.float64),
        )

    @property
    def samples(self) -> int:
        """Number of examples."""
        return int(self.counts[0])


def require_same_totals(reduced: Totals, gathered: Totals) -> None:
    """Compares the two roads to each total: the ranks' sums added up, and sums over the gathered examples.

    Args:
        reduced: per-rank totals, added up by all_reduce.
        gathered: totals of the examples that all_gather_object brought together.

    Raises:
        ExactnessError: a count differs, or the mean loss differs by more than rounding.
    """
    for name in ("counts", "confusion"):
        if not np.array_equal(getattr(reduced, name), getattr(gathered, name)):
            raise ExactnessError(
                f"The two roads to the {name} disagree: all_reduce gives {getattr(reduced, name).tolist()}, "
                f"the gathered examples give {getattr(gathered, name).tolist()}. No metric was computed."
            )
    # Two orders of summation differ by rounding only; infinities compare equal to themselves.
    if not np.allclose(reduced.loss, gathered.loss, rtol=_LOSS_TOLERANCE, atol=_LOSS_TOLERANCE):
        raise ExactnessError(
            f"The two roads to the loss disagree: all_reduce gives {reduced.loss[0]!r}, "
            f"the gathered examples give {gathered.loss[0]!r}. No metric was computed."
        )


@dataclass(frozen=True)
class Metrics:
    """Figures over a whole dataset.

    Attributes:
        values: figure by name; `None` where the data leave it undefined.
        undefined: for each figure that is `None`, why.
        per_class: for each class its label, precision, recall, f1 (each possibly `None`) and support.
        confusion: examples by true (row) and predicted class (column), int64 of shape [classes, classes].
        majority_share: share of the most frequent class, what always guessing it would score.
    """

    values: dict[str, float | None]
    undefined: dict[str, str]
    per_class: list[dict[str, Any]]
    confusion: np.ndarray
    majority_share: float
    label_names: list[str] = field(default_factory=list)


def compute_metrics(predictions: Predictions, label_names: Sequence[str]) -> Metrics:
    """Computes all metrics of a classifier.

    Definitions are scikit-learn's (`sklearn.metrics`); macro averages are over the classes that occur among the
    labels or the predictions, which is its default. Where one of those classes has no precision (never predicted) or
    no recall (no examples), scikit-learn would count it as 0; here the average is undefined, and the reason tells what
    that convention would give.

    Args:
        predictions: at least one example, in dataset order.
        label_names: name of each class, `predictions.num_labels` of them.

    Returns:
        The metrics.
    """
    from sklearn import metrics as sk

    label, prediction, probabilities = predictions.label, predictions.prediction, predictions.probabilities
    classes = np.arange(predictions.num_labels)
    present = np.union1d(label, prediction)
    confusion = sk.confusion_matrix(label, prediction, labels=classes)
    values: dict[str, float | None] = {
        "accuracy": float(sk.accuracy_score(label, prediction)),
        "loss": float(predictions.loss.mean()),
    }
    undefined: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns of what `undefined` reports
        values["mcc"] = float(sk.matthews_corrcoef(label, prediction))
        values["balanced_accuracy"] = float(sk.balanced_accuracy_score(label, prediction))
        for average in ("macro", "micro", "weighted"):
            figures = sk.precision_recall_fscore_support(
                label, prediction, labels=present, average=average, zero_division=0
            )
            for name, value in zip(("precision", "recall", "f1"), figures[:3], strict=True):
                values[f"{name}_{average}"] = float(value)
    _withdraw_undefined_averages(values, undefined, confusion, present, label_names)
    if len(np.unique(label)) < 2 or len(np.unique(prediction)) < 2:
        values["mcc"], undefined["mcc"] = None, "needs at least two classes among labels and among predictions"
    _add_probability_metrics(values, undefined, label, probabilities, classes, label_names)
    support = confusion.sum(axis=1)
    return Metrics(
        values=values,
        undefined=undefined,
        per_class=_per_class(confusion, label_names),
        confusion=confusion,
        majority_share=float(support.max() / support.sum()),
        label_names=list(label_names),
    )


def _withdraw_undefined_averages(
    values: dict[str, float | None],
    undefined: dict[str, str],
    confusion: np.ndarray,
    present: np.ndarray,
    label_names: Sequence[str],
) -> None:
    for figure, axis, why in (("precision", 0, "was never predicted"), ("recall", 1, "has no examples")):
        absent = present[confusion.sum(axis=axis)[present] == 0]
        for average in ("macro", "weighted"):
            # a class without examples weighs nothing in a weighted average
            if not len(absent) or (figure, average) == ("recall", "weighted"):
                continue
            name = f"{figure}_{average}"
            undefined[name] = f"{_classes(absent, label_names)} {why} (counted as 0, it would be {values[name]:.4f})"
            values[name] = None


def _classes(numbers: np.ndarray, label_names: Sequence[str]) -> str:
    names = ", ".join(repr(label_names[c]) for c in numbers[:5]) + (", ..." if len(numbers) > 5 else "")
    return f"class {names}" if len(numbers) == 1 else f"classes {names}"


def _add_probability_metrics(
    values: dict[str, float | None],
    undefined: dict[str, str],
    label: np.ndarray,
    probabilities: np.ndarray,
    classes: np.ndarray,
    label_names: Sequence[str],
) -> None:
    from sklearn import metrics as sk

    if len(classes) < 2:
        for name in ("log_loss", "roc_auc"):
            values[name], undefined[name] = None, "the head has only one class"
        return
    # the loss is exact, scikit-learn's log loss clips probabilities away from 0
    values["log_loss"] = float(sk.log_loss(label, probabilities, labels=classes))
    absent = np.setdiff1d(classes, label)
    if len(classes) == 2:
        names, scores = ["roc_auc"], probabilities[:, 1]
        options: list[dict[str, Any]] = [{}]
    else:
        names, scores = ["roc_auc_ovr_macro", "roc_auc_ovr_weighted"], probabilities
        options = [{"multi_class": "ovr", "average": a, "labels": classes} for a in ("macro", "weighted")]
    for name, extra in zip(names, options, strict=True):
        if len(absent):
            values[name], undefined[name] = None, f"{_classes(absent, label_names)} without examples"
        else:
            values[name] = float(sk.roc_auc_score(label, scores, **extra))


def _per_class(confusion: np.ndarray, label_names: Sequence[str]) -> list[dict[str, Any]]:
    def ratio(numerator: int, denominator: int) -> float | None:
        return float(numerator / denominator) if denominator else None

    rows = []
    for c, name in enumerate(label_names):
        hits, support, predicted = int(confusion[c, c]), int(confusion[c].sum()), int(confusion[:, c].sum())
        rows.append(
            {
                "label": name,
                "precision": ratio(hits, predicted),
                "recall": ratio(hits, support),
                "f1": ratio(2 * hits, support + predicted),
                "support": support,
            }
        )
    return rows
