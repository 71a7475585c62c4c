"""Metrics: predictions → confusion matrix → metrics, computed by scikit-learn. Needs no process group and no model.

The metrics depend on the problem type (see `dist_eval.data.problem_types`): those of single-label classification are
here, the others in `multilabel` and `regression`.

A metric that is undefined for the data (the recall of a class without examples, the AUC of one class) is `None`, and
`undefined` gives the reason; it is never replaced by 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, named
from dist_eval.errors import ExactnessError
from dist_eval.metrics.calibration import calibration_metrics
from dist_eval.metrics.confusion import confusion_of
from dist_eval.metrics.multilabel import class_results, label_confusion, multi_label_metrics
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.metrics.ranking import area_under_roc
from dist_eval.metrics.regression import regression_metrics
from dist_eval.results.record import MetricValues, Reasons
from dist_eval.results.scores import PerClass

_LOSS_TOLERANCE = 1e-9
_CLASSES_IN_MESSAGE = 20


@dataclass(frozen=True)
class Totals:
    """Sums over examples, which can be added over batches and ranks.

    Attributes:
        counts: examples and correct examples (all labels correct; 0 in a regression), int64 of shape [2].
        confusion: examples by true class (row) and predicted class (column), int64 of shape [classes, classes], a SciPy
            sparse array; in a multi-label problem of shape [labels, 2, 2] (see `label_confusion`), in a regression of
            shape [0, 0].
        loss: sum of the losses, float64 of shape [1].
        errors: in a regression, sums of the absolute and of the squared errors, float64 of shape [outputs, 2]; else of
            shape [0, 2].
    """

    counts: np.ndarray
    confusion: Any
    loss: np.ndarray
    errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))

    @classmethod
    def of(cls, predictions: PredictionsLike) -> Totals:
        """Computes the totals of predictions, possibly of no example."""
        problem, outputs, correct = predictions.problem, predictions.num_labels, 0
        errors = np.zeros((outputs if problem is REGRESSION else 0, 2))
        confusion: Any = np.zeros((outputs, 2, 2) if problem is MULTI_LABEL else (0, 0), dtype=np.int64)
        if problem is SINGLE_LABEL:
            # at once: adding up sparse matrices of pieces would copy the sum for each piece
            confusion = confusion_of(predictions.label, predictions.prediction, outputs)
            correct = confusion.diagonal().sum()
        else:
            for piece in predictions.pieces():
                if problem is MULTI_LABEL:
                    confusion += label_confusion(piece.label, piece.prediction)
                    correct += int((piece.label == piece.prediction).all(axis=1).sum())
                else:
                    apart = np.abs(piece.prediction - piece.label)
                    errors += np.stack([apart.sum(axis=0), (apart**2).sum(axis=0)], axis=1)
        return cls(
            counts=np.asarray([len(predictions), correct], dtype=np.int64),
            confusion=confusion,
            loss=np.asarray([predictions.loss.sum()], dtype=np.float64),
            errors=errors,
        )

    @property
    def samples(self) -> int:
        """Number of examples."""
        return int(self.counts[0])

    @property
    def accuracy(self) -> float | None:
        """Share of correct examples, None without any; meaningless in a regression."""
        return int(self.counts[1]) / self.samples if self.samples else None

    @property
    def mean_loss(self) -> float | None:
        """Mean of the losses, None without examples."""
        return float(self.loss[0]) / self.samples if self.samples else None


def require_same_totals(reduced: Totals, gathered: Totals) -> None:
    """Requires that each total, computed in two ways, is the same: all_reduce of rank totals, and gathered examples.

    Args:
        reduced: per-rank totals, summed by all_reduce.
        gathered: totals of the examples gathered by all_gather_object.

    Raises:
        ExactnessError: a count differs, or a sum differs by more than rounding error.
    """
    for name, agree in (
        ("counts", np.array_equal),
        ("confusion", _are_equal),
        ("loss", _are_close),
        ("errors", _are_close),
    ):
        sums, others = getattr(reduced, name), getattr(gathered, name)
        if not agree(sums, others):
            raise ExactnessError(
                f"The {name} do not agree: all_reduce gives {_described(sums)}, "
                f"the gathered examples give {_described(others)}. No metric was computed."
            )


def _are_equal(sums: Any, others: Any) -> bool:
    return sums.shape == others.shape and not (sums - others).nonzero()[0].size


def _described(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return str(values.tolist())
    is_small = values.shape[0] <= _CLASSES_IN_MESSAGE
    return str(values.toarray().tolist()) if is_small else " ".join(str(values).split())


def _are_close(sums: np.ndarray, others: np.ndarray) -> bool:
    """Returns whether sums in different orders differ by rounding only; infinities compare equal to themselves."""
    return sums.shape == others.shape and np.allclose(sums, others, rtol=_LOSS_TOLERANCE, atol=_LOSS_TOLERANCE)


@dataclass(frozen=True)
class Metrics:
    """The metrics of a dataset.

    Attributes:
        values: metric by name; `None` if undefined for the data.
        undefined: the reason for each metric that is `None`.
        per_class: the metrics of each class, label or output, without intervals.
        cells: the confusion matrix; in single-label classification a SciPy sparse array, int64 of shape [classes,
            classes], else as `confusion`.
        majority_share: share of the most frequent class, the accuracy of always predicting it; single-label only.
        label_names: name of each class, label or output.
        problem: name of the problem type.
        custom: names of the values of custom metrics.
    """

    values: MetricValues
    undefined: Reasons
    per_class: PerClass
    cells: Any
    majority_share: float | None
    label_names: list[str] = field(default_factory=list)
    problem: str = SINGLE_LABEL.name
    custom: list[str] = field(default_factory=list)

    @property
    def confusion(self) -> np.ndarray:
        """The whole confusion matrix: examples by true class (row) and predicted class (column), int64.

        Of shape [classes, classes], in a multi-label problem [labels, 2, 2], in a regression [0, 0]. Of very many
        classes it takes much memory; `cells` does not.
        """
        return self.cells if isinstance(self.cells, np.ndarray) else self.cells.toarray()


def compute_metrics(predictions: PredictionsLike, label_names: Sequence[str]) -> Metrics:
    """Computes all metrics of the predictions' problem type.

    Definitions are scikit-learn's (`sklearn.metrics`) and, for correlations, SciPy's. In single-label classification
    macro averages are over the classes that occur among the labels or the predictions, which is scikit-learn's default.
    If the precision (never predicted) or recall (no examples) of one of them is undefined, scikit-learn counts it as 0;
    here the average is undefined, and the reason states the value under that convention.

    Args:
        predictions: at least one example, in dataset order.
        label_names: name of each class, label or output, `predictions.num_labels` of them.

    Returns:
        The metrics.

    Examples:
        >>> from dist_eval import Predictions
        >>> logits = [[2.0, 0.0], [0.0, 3.0], [1.0, 0.0], [4.0, 1.0]]
        >>> found = Predictions.from_logits(index=[0, 1, 2, 3], label=[0, 1, 1, 0], logits=logits)
        >>> metrics = compute_metrics(found, ["negative", "positive"])
        >>> metrics.values["accuracy"]
        0.75
        >>> metrics.confusion.tolist()
        [[2, 0], [1, 1]]
    """
    problem, loss = predictions.problem, float(predictions.loss.mean())
    if problem is SINGLE_LABEL:
        return _single_label_metrics(predictions, label_names)
    confusion = Totals.of(predictions).confusion
    rows: PerClass
    if problem is MULTI_LABEL:
        values, undefined, rows = multi_label_metrics(predictions, confusion, label_names)
    else:
        values, undefined, rows = regression_metrics(predictions, label_names)
    return Metrics(
        values={**values, "loss": loss},
        undefined=undefined,
        per_class=rows,
        cells=confusion,
        majority_share=None,
        label_names=list(label_names),
        problem=problem.name,
    )


def _single_label_metrics(predictions: PredictionsLike, label_names: Sequence[str]) -> Metrics:
    from sklearn import metrics as sk

    confusion = Totals.of(predictions).confusion
    support, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    present = np.flatnonzero(support + predicted)
    # one weighted example per cell gives the same metrics as all examples, at negligible cost
    label, prediction = confusion.nonzero()
    cells = {"y_true": label, "y_pred": prediction, "sample_weight": confusion.data}
    values: MetricValues = {
        "accuracy": float(sk.accuracy_score(**cells)),
        "loss": float(predictions.loss.mean()),
        "mcc": _matthews(confusion.diagonal().sum(), support[present], predicted[present]),
        "balanced_accuracy": float(np.mean(confusion.diagonal()[support > 0] / support[support > 0])),
    }
    undefined: Reasons = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about what `undefined` reports
        for average in ("macro", "micro", "weighted"):
            figures = sk.precision_recall_fscore_support(**cells, labels=present, average=average, zero_division=0)
            for name, value in zip(("precision", "recall", "f1"), figures[:3], strict=True):
                values[f"{name}_{average}"] = float(value)
    _withdraw_undefined_averages(values, undefined, confusion, present, label_names)
    if np.count_nonzero(support) < 2 or np.count_nonzero(predicted) < 2:
        values["mcc"], undefined["mcc"] = None, "needs at least two classes among labels and among predictions"
    _add_probability_metrics(values, undefined, predictions, support, label_names)
    values.update(calibration_metrics(predictions))
    return Metrics(
        values=values,
        undefined=undefined,
        per_class=class_results(label_names, confusion.diagonal(), support, predicted),
        cells=confusion,
        majority_share=float(support.max() / support.sum()),
        label_names=list(label_names),
    )


def _matthews(hits: np.ndarray, support: np.ndarray, predicted: np.ndarray) -> float:
    """Returns Matthews' correlation from counts; scikit-learn's needs a dense confusion matrix."""
    support, predicted = support.astype(np.float64), predicted.astype(np.float64)
    examples = support.sum()
    spread = (examples**2 - np.dot(predicted, predicted)) * (examples**2 - np.dot(support, support))
    return float((hits * examples - np.dot(support, predicted)) / np.sqrt(spread)) if spread else 0.0


def _withdraw_undefined_averages(
    values: MetricValues,
    undefined: Reasons,
    confusion: Any,
    present: np.ndarray,
    label_names: Sequence[str],
) -> None:
    for figure, axis, why in (("precision", 0, "was never predicted"), ("recall", 1, "has no examples")):
        absent = present[confusion.sum(axis=axis)[present] == 0]
        for average in ("macro", "weighted"):
            # a class without examples has weight 0 in a weighted average
            if not len(absent) or (figure, average) == ("recall", "weighted"):
                continue
            name = f"{figure}_{average}"
            undefined[name] = f"{named(absent, label_names)} {why} (counted as 0, it would be {values[name]:.4f})"
            values[name] = None


def _add_probability_metrics(
    values: MetricValues,
    undefined: Reasons,
    predictions: PredictionsLike,
    support: np.ndarray,
    label_names: Sequence[str],
) -> None:
    from sklearn import metrics as sk

    classes = np.arange(predictions.num_labels)
    if len(classes) < 2:
        for name in ("log_loss", "roc_auc"):
            values[name], undefined[name] = None, "the head has only one class"
        return
    # unlike the loss, scikit-learn's log loss clips probabilities away from 0
    parts = [
        sk.log_loss(piece.label, piece.probabilities, labels=classes, normalize=False) for piece in predictions.pieces()
    ]
    values["log_loss"] = float(np.sum(parts) / len(predictions))
    weights: dict[str, np.ndarray | None] = {"roc_auc_ovr_macro": None, "roc_auc_ovr_weighted": support}
    if len(classes) == 2:
        weights, classes = {"roc_auc": None}, classes[1:]
    absent = np.flatnonzero(support == 0)
    if len(absent):
        values.update(dict.fromkeys(weights))
        undefined.update(dict.fromkeys(weights, f"{named(absent, label_names)} without examples"))
        return
    # class by class: all scores at once would take more memory than the predictions
    scores = zip(classes, predictions.probabilities_of(classes), strict=True)
    areas = [area_under_roc(predictions.label == number, score) for number, score in scores]
    for name, weight in weights.items():
        values[name] = float(np.average(areas, weights=weight))
