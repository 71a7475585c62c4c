"""Metrics of multi-label classification. Free of side effects.

Each label is a binary problem. Averages are over all labels, as in scikit-learn; if the precision (never predicted),
recall (no examples) or F1 of a label is undefined, scikit-learn counts it as 0, whereas here the average is undefined,
and the reason states the value under that convention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_eval.data.problem_types import named
from dist_eval.metrics.calibration import calibration_metrics
from dist_eval.metrics.predictions import PredictionsLike
from dist_eval.metrics.ranking import area_under_roc
from dist_eval.results.record import MetricValues, Reasons
from dist_eval.results.scores import ClassResults

_WHY = {
    "precision": ("was never predicted", "were never predicted"),
    "recall": ("has no examples", "have no examples"),
    "f1": ("has no examples and was never predicted", "have no examples and were never predicted"),
}


def label_confusion(label: np.ndarray, prediction: np.ndarray) -> np.ndarray:
    """Counts examples for each label by truth (row) and prediction (column), in the order false, true.

    Args:
        label: which labels each example has, bool of shape [n, labels].
        prediction: which labels were predicted, bool of the same shape.

    Returns:
        Counts, int64 of shape [labels, 2, 2], as from `sklearn.metrics.multilabel_confusion_matrix`.
    """
    has, given, both = label.sum(axis=0), prediction.sum(axis=0), (label & prediction).sum(axis=0)
    cells = [[len(label) - has - given + both, given - both], [has - both, both]]
    return np.moveaxis(np.asarray(cells, dtype=np.int64), 2, 0)


def multi_label_metrics(
    predictions: PredictionsLike, confusion: np.ndarray, names: Sequence[str]
) -> tuple[MetricValues, Reasons, list[ClassResults]]:
    """Computes the metrics over all labels and of each label.

    Args:
        predictions: predictions of a multi-label problem, at least one example.
        confusion: counts for each label (see `label_confusion`).
        names: names of the labels.

    Returns:
        Metrics by name, the reasons of undefined ones, and for each label its metrics and support.
    """
    (_, false), (missed, hits) = np.moveaxis(confusion, 0, 2)
    support = missed + hits
    exact = sum(int((piece.label == piece.prediction).all(axis=1).sum()) for piece in predictions.pieces())
    values: MetricValues = {
        "subset_accuracy": exact / len(predictions),
        "hamming_loss": float((false + missed).sum() / (len(predictions) * len(names))),
    }
    undefined: Reasons = {}
    ratios = {
        "precision": (hits, hits + false),
        "recall": (hits, support),
        "f1": (2 * hits, 2 * hits + false + missed),
    }
    for figure, (numerator, denominator) in ratios.items():
        _add_averages(values, undefined, figure, numerator, denominator, support, names)
    _add_rankings(values, undefined, predictions, support, names)
    values.update(calibration_metrics(predictions))
    return values, undefined, class_results(names, hits, support, hits + false)


def class_results(
    names: Sequence[str], hits: np.ndarray, support: np.ndarray, predicted: np.ndarray
) -> list[ClassResults]:
    """Computes the metrics of each class or label from counts.

    Args:
        names: names of the classes or labels.
        hits: true positives of each, int64 of shape [classes].
        support: examples of each, int64 of shape [classes].
        predicted: predictions of each, int64 of shape [classes].
    """
    return [
        ClassResults(
            label=name,
            precision=ratio(hits[i], predicted[i]),
            recall=ratio(hits[i], support[i]),
            f1=ratio(2 * hits[i], support[i] + predicted[i]),
            support=int(support[i]),
        )
        for i, name in enumerate(names)
    ]


def ratio(numerator: int, denominator: int) -> float | None:
    """Divides counts; returns None if the denominator is 0."""
    return float(numerator / denominator) if denominator else None


def _add_averages(
    values: MetricValues,
    undefined: Reasons,
    figure: str,
    numerator: np.ndarray,
    denominator: np.ndarray,
    support: np.ndarray,
    names: Sequence[str],
) -> None:
    as_zero = numerator / np.maximum(denominator, 1)
    lacking = np.flatnonzero(denominator == 0)
    one, several = _WHY[figure]
    for average, weights in (("macro", np.ones(len(names))), ("weighted", support)):
        name, counts = f"{figure}_{average}", lacking[weights[lacking] > 0]
        total = weights.sum()
        if total == 0:
            values[name], undefined[name] = None, "no label has examples"
        elif len(counts):
            who = f"{named(counts, names, 'label', 'labels')} {one if len(counts) == 1 else several}"
            values[name] = None
            undefined[name] = f"{who} (counted as 0, it would be {np.average(as_zero, weights=weights):.4f})"
        else:
            values[name] = float(np.average(as_zero, weights=weights))
    name = f"{figure}_micro"
    values[name] = ratio(numerator.sum(), denominator.sum())
    if values[name] is None:
        undefined[name] = {"precision": "no label was ever predicted", "recall": "no label has examples"}.get(
            figure, "no label has examples or was ever predicted"
        )


def _add_rankings(
    values: MetricValues, undefined: Reasons, predictions: PredictionsLike, support: np.ndarray, names: Sequence[str]
) -> None:
    """Adds the ranking metrics: averages over labels of the area under the ROC curve and of average precision."""
    from sklearn.metrics import average_precision_score

    count = len(predictions)
    for figure, lacking, score in (
        ("roc_auc", np.flatnonzero((support == 0) | (support == count)), area_under_roc),
        ("average_precision", np.flatnonzero(support == 0), average_precision_score),
    ):
        if len(lacking):
            what = "only examples with it, or none" if figure == "roc_auc" else "no examples"
            why = f"{named(lacking, names, 'label', 'labels')} with {what}"
            values[f"{figure}_macro"] = values[f"{figure}_weighted"] = None
            undefined[f"{figure}_macro"] = undefined[f"{figure}_weighted"] = why
            continue
        columns = enumerate(predictions.probabilities_of(range(len(names))))
        each = [float(score(predictions.label[:, number], column)) for number, column in columns]
        values[f"{figure}_macro"] = float(np.mean(each))
        values[f"{figure}_weighted"] = float(np.average(each, weights=support))
