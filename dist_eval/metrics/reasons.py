"""Why metrics are undefined for the data.

Averages are over all labels, or over the classes that occur. If the precision (never predicted), recall (no examples)
or F1 of one of them is undefined, scikit-learn counts it as 0, whereas here the average is undefined, and the reason
states the value under that convention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_eval.data.problem_types import named
from dist_eval.metrics.counts import ClassCounts
from dist_eval.results.record import Reasons

_WHY_UNDEFINED = {
    "precision": ("was never predicted", "were never predicted", "no label was ever predicted"),
    "recall": ("has no examples", "have no examples", "no label has examples"),
    "f1": (
        "has no examples and was never predicted",
        "have no examples and were never predicted",
        "no label has examples or was ever predicted",
    ),
}


def reasons_of_classes(counts: ClassCounts, label_names: Sequence[str]) -> Reasons:
    """Returns the reasons of undefined metrics of single-label classification, from the counts of all classes."""
    support, predicted = counts.support[:, 0], counts.predicted[:, 0]
    reasons = {}
    if min(np.count_nonzero(support), np.count_nonzero(predicted)) < 2:
        reasons["mcc"] = "needs at least two classes among labels and among predictions"
    for ratio, below in (("precision", predicted), ("recall", support)):
        absent = np.flatnonzero(counts.counted[:, 0] & (below == 0))
        averages = ["macro"] if ratio == "recall" else ["macro", "weighted"]  # a class without examples has no weight
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


def reasons_of_labels(counts: ClassCounts, label_names: Sequence[str]) -> Reasons:
    """Returns the reasons of undefined metrics of multi-label classification, from the counts of all labels."""
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
    """Returns the reasons of undefined metrics of an output of a regression, by name.

    Args:
        label: true values, float64 of shape [n].
        output: predicted values, float64 of shape [n].
    """
    constant = [what for what, column in (("labels", label), ("outputs", output)) if column.min() == column.max()]
    reasons = {"r2": "all labels are equal"} if "labels" in constant else {}
    if constant:
        reasons |= dict.fromkeys(("pearson", "spearman"), f"all {' and all '.join(constant)} are equal")
    return reasons


def reasons_of_means(reasons: Sequence[Reasons], names: Sequence[str]) -> Reasons:
    """Returns the reasons of undefined means over the outputs of a regression, from those of each output."""
    means: Reasons = {}
    for metric in dict.fromkeys(name for of_output in reasons for name in of_output):
        lacking = np.asarray([number for number, of_output in enumerate(reasons) if metric in of_output])
        where = f" ({named(lacking, names, 'output', 'outputs')})" if len(names) > 1 else ""
        means[metric] = reasons[lacking[0]][metric] + where
    return means
