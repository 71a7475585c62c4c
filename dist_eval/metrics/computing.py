"""Predictions → confusion matrix → metrics. Needs no process group and no model.

A metric that is undefined for the data (the recall of a class without examples, the AUC of one class) is `None`, never
0, and `undefined` gives the reason. Averages are over all labels, or over the classes that occur. If the precision
(never predicted), recall (no examples) or F1 of one of them is undefined, scikit-learn counts it as 0. Here the average
is undefined, and the reason states the value under that convention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dist_eval.metrics.catalogue import METRICS, OF_CLASS, OF_OUTPUT
from dist_eval.metrics.confusion import ClassCounts, confusion_matrix
from dist_eval.metrics.definitions import rank_correlations, statistic_of_outputs, statistics_of
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.units import Units
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, named
from dist_eval.record import MetricValues, Reasons
from dist_eval.results.scores import ClassResults, OutputResults, PerClass

_TOO_LARGE = "squares of the values exceed the range of 64-bit floats"
_WHY_UNDEFINED = {
    "precision": ("was never predicted", "were never predicted", "no label was ever predicted"),
    "recall": ("has no examples", "have no examples", "no label has examples"),
    "f1": (
        "has no examples and was never predicted",
        "have no examples and were never predicted",
        "no label has examples or was ever predicted",
    ),
}


@dataclass(frozen=True)
class Metrics:
    """The metrics of a dataset.

    Attributes:
        values: metric by name; `None` if undefined for the data.
        undefined: the reason for each metric that is `None`.
        per_class: the metrics of each class, label or output, without intervals.
        cells: the confusion matrix; in single-label classification a SciPy sparse array, int64 of shape [classes,
            classes], else as `confusion`.
        majority_share: fraction of the most frequent class, the accuracy of always predicting it; single-label only.
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

        Of shape [classes, classes], in a multi-label problem [labels, 2, 2], in a regression [0, 0]. With very many
        classes it takes much memory; `cells` does not.
        """
        return self.cells if isinstance(self.cells, np.ndarray) else self.cells.toarray()


def compute_metrics(predictions: Predictions, label_names: Sequence[str]) -> Metrics:
    """Computes all metrics of the predictions' problem type.

    Definitions are scikit-learn's (`sklearn.metrics`) and, for correlations, SciPy's. In single-label classification
    macro averages are over the classes that occur among the labels or the predictions, which is scikit-learn's default.

    Args:
        predictions: at least one example, in dataset order.
        label_names: name of each class, label or output, `predictions.num_labels` of them.

    Returns:
        The metrics, in the order of `METRICS`.

    Raises:
        ValueError: a prediction is not a number.

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
    problem = predictions.problem
    numbers = (predictions.label, predictions.prediction) if problem is REGRESSION else ()
    if np.isnan(predictions.loss).any() or not all(np.isfinite(column).all() for column in numbers):
        raise ValueError("Input contains NaN or infinity.")
    cells = confusion_matrix(predictions)
    rows: PerClass
    if problem is REGRESSION:
        values, undefined, rows = _regression_metrics(predictions, label_names)
    else:
        counts = ClassCounts.of_matrix(cells)
        rows = _class_results(counts, label_names)
        undefined = (_reasons_of_labels if problem is MULTI_LABEL else _reasons_of_classes)(counts, label_names)
        values = {}
        for statistic in statistics_of(predictions):
            if not undefined.keys() >= {*statistic.names}:
                values.update(statistic.observed())
    values |= dict.fromkeys(undefined)
    for name, value in values.items():
        if value is not None and not math.isfinite(value):  # without another reason
            values[name], undefined[name] = None, f"its formula gives {value} for these data"
    return Metrics(
        values={metric.name: values[metric.name] for metric in METRICS[problem.name] if metric.name in values},
        undefined=undefined,
        per_class=rows,
        cells=cells,
        majority_share=float(counts.support.max() / len(predictions)) if problem is SINGLE_LABEL else None,
        label_names=list(label_names),
        problem=problem.name,
    )


def _class_results(counts: ClassCounts, names: Sequence[str]) -> list[ClassResults]:
    columns = [
        [None if np.isnan(value) else value for value in counts.of_each[name][:, 0].tolist()] for name in OF_CLASS
    ]
    return [
        ClassResults(label=name, support=int(support), **dict(zip(OF_CLASS, row, strict=True)))
        for name, support, *row in zip(names, counts.support[:, 0], *columns, strict=True)
    ]


def _regression_metrics(
    predictions: Predictions, names: Sequence[str]
) -> tuple[MetricValues, Reasons, list[OutputResults]]:
    """Returns means over the outputs, reasons for undefined ones, and the metrics of each output."""
    label, output = predictions.label, predictions.prediction
    of_outputs = statistic_of_outputs(predictions, lambda: Units.single(len(label))).observed()
    of_outputs |= {
        f"{number}/spearman": float(rank) for number, rank in enumerate(rank_correlations(label.T, output.T))
    }
    reasons = [reasons_of_output(*columns) for columns in zip(label.T, output.T, strict=True)]
    for number, of_output in enumerate(reasons):
        for metric in OF_OUTPUT:
            if not np.isfinite(of_outputs[f"{number}/{metric}"]):
                of_output.setdefault(metric, _TOO_LARGE)
    undefined = _reasons_of_means(reasons, names)
    loss = float(predictions.loss.mean())
    if not np.isfinite(loss):
        undefined["loss"] = _TOO_LARGE
    values: MetricValues = {"loss": loss}
    for metric in OF_OUTPUT:
        if metric not in undefined:
            values[metric] = float(np.mean([of_outputs[f"{number}/{metric}"] for number in range(len(names))]))
    rows = [
        OutputResults.model_validate(
            {"label": name}
            | {metric: None if metric in reasons[number] else of_outputs[f"{number}/{metric}"] for metric in OF_OUTPUT}
        )
        for number, name in enumerate(names)
    ]
    return values, undefined, rows


def _reasons_of_classes(counts: ClassCounts, label_names: Sequence[str]) -> Reasons:
    """Returns the reasons for undefined metrics of single-label classification, given the counts of all classes."""
    support, predicted = counts.support[:, 0], counts.predicted[:, 0]
    reasons = {}
    if min(np.count_nonzero(support), np.count_nonzero(predicted)) < 2:
        reasons["mcc"] = "needs at least two classes among labels and among predictions"
    for ratio, below in (("precision", predicted), ("recall", support)):
        absent = np.flatnonzero(counts.counted[:, 0] & (below == 0))
        averages = ["macro"] if ratio == "recall" else ["macro", "weighted"]  # classes without examples have no weight
        for average in averages if len(absent) else ():
            one, several, _ = _WHY_UNDEFINED[ratio]
            who = f"{named(absent, label_names)} {one if len(absent) == 1 else several}"
            reasons[f"{ratio}_{average}"] = f"{who} {_counted_as_zero(counts, ratio, average)}"
    areas = ("roc_auc",) if len(support) <= 2 else ("roc_auc_ovr_macro", "roc_auc_ovr_weighted")
    if len(support) == 1:
        return reasons | dict.fromkeys(("log_loss", *areas), "the head has only one class")
    absent = np.flatnonzero(support == 0)
    if len(absent):
        reasons |= dict.fromkeys(areas, f"{named(absent, label_names)} without examples")
    return reasons


def _reasons_of_labels(counts: ClassCounts, label_names: Sequence[str]) -> Reasons:
    """Returns the reasons for undefined metrics of multi-label classification, given the counts of all labels."""
    support, examples = counts.support[:, 0], counts.examples[0]
    reasons = {}
    for ratio, (one, several, of_all) in _WHY_UNDEFINED.items():
        below = counts.ratios[ratio][1][:, 0]
        for average, weights in (("macro", np.ones(len(support))), ("weighted", support)):
            absent = np.flatnonzero((below == 0) & (weights > 0))
            if not weights.sum():
                reasons[f"{ratio}_{average}"] = "no label has examples"
            elif len(absent):
                who = f"{named(absent, label_names, 'label', 'labels')} {one if len(absent) == 1 else several}"
                reasons[f"{ratio}_{average}"] = f"{who} {_counted_as_zero(counts, ratio, average)}"
        if not below.sum():
            reasons[f"{ratio}_micro"] = of_all
    for curve, is_absent, what in (
        ("roc_auc", (support == 0) | (support == examples), "only examples with it, or none"),
        ("average_precision", support == 0, "no examples"),
    ):
        absent = np.flatnonzero(is_absent)
        if len(absent):
            why = f"{named(absent, label_names, 'label', 'labels')} with {what}"
            reasons |= {f"{curve}_macro": why, f"{curve}_weighted": why}
    return reasons


def _counted_as_zero(counts: ClassCounts, ratio: str, average: str) -> str:
    of_each = np.nan_to_num(counts.of_each[ratio][:, 0])
    weights = counts.counted[:, 0] if average == "macro" else counts.support[:, 0]
    return f"(counted as 0, it would be {np.average(of_each, weights=weights):.4f})"


def reasons_of_output(label: np.ndarray, output: np.ndarray) -> Reasons:
    """Returns the reasons for undefined metrics of an output of a regression; both arrays are float64 of shape [n]."""
    constant = [what for what, column in (("labels", label), ("outputs", output)) if column.min() == column.max()]
    reasons = {"r2": "all labels are equal"} if "labels" in constant else {}
    if constant:
        reasons |= dict.fromkeys(("pearson", "spearman"), f"all {' and all '.join(constant)} are equal")
    return reasons


def _reasons_of_means(reasons: Sequence[Reasons], names: Sequence[str]) -> Reasons:
    """Returns the reasons for undefined means over the outputs of a regression, given those of each output."""
    means: Reasons = {}
    for metric in dict.fromkeys(name for of_output in reasons for name in of_output):
        lacking = np.asarray([number for number, of_output in enumerate(reasons) if metric in of_output])
        where = f" ({named(lacking, names, 'output', 'outputs')})" if len(names) > 1 else ""
        means[metric] = reasons[lacking[0]][metric] + where
    return means
