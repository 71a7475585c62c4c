"""The catalogue of metrics: what is known of each, and where it is shown. Imports no library, for command lines.

Their values are computed in `computing`, `multilabel` and `regression`, and again from resampled counts, for intervals,
in `dist_eval.statistics`. A metric of each class or output also has a field in `dist_eval.results.scores`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

View = Literal["table", "cards", "compared", "slices", "tuning"]

SHARE, CORRELATION, UNBOUNDED = (0.0, 1.0), (-1.0, 1.0), (0.0, math.inf)


@dataclass(frozen=True)
class Metric:
    """A metric of a problem type.

    Attributes:
        name: as in `results.json`.
        range: smallest and largest possible value; for a name, the same in all problem types.
        lower_is_better: whether 0 is the best value, instead of the largest one.
        over_classes: whether it is a mean over classes in which a class with few examples, or few predictions, has full
            weight; undefined for a slice with few examples of a class.
        is_accuracy: whether it equals the share of correct examples, so that Wilson's interval applies.
        in_table: whether it is in the table that a run prints and at the top of reports.
    """

    name: str
    range: tuple[float, float]
    lower_is_better: bool = False
    over_classes: bool = False
    is_accuracy: bool = False
    in_table: bool = True


METRICS = {
    "single_label_classification": (
        Metric("accuracy", SHARE, is_accuracy=True),
        Metric("balanced_accuracy", SHARE, over_classes=True),
        Metric("f1_macro", SHARE, over_classes=True),
        Metric("f1_weighted", SHARE),
        Metric("mcc", CORRELATION),
        Metric("loss", UNBOUNDED, lower_is_better=True),
        Metric("log_loss", UNBOUNDED, lower_is_better=True),
        Metric("ece", SHARE, lower_is_better=True),
        Metric("brier", (0.0, 2.0), lower_is_better=True),
        Metric("roc_auc", SHARE),  # of two classes; the next two are of more
        Metric("roc_auc_ovr_macro", SHARE, over_classes=True),
        Metric("roc_auc_ovr_weighted", SHARE),
        Metric("precision_macro", SHARE, over_classes=True, in_table=False),
        Metric("precision_micro", SHARE, is_accuracy=True, in_table=False),
        Metric("precision_weighted", SHARE, in_table=False),
        Metric("recall_macro", SHARE, over_classes=True, in_table=False),
        Metric("recall_micro", SHARE, is_accuracy=True, in_table=False),
        Metric("recall_weighted", SHARE, is_accuracy=True, in_table=False),
        Metric("f1_micro", SHARE, is_accuracy=True, in_table=False),
    ),
    "multi_label_classification": (
        Metric("subset_accuracy", SHARE, is_accuracy=True),
        Metric("hamming_loss", SHARE, lower_is_better=True),
        Metric("f1_micro", SHARE),
        Metric("f1_macro", SHARE, over_classes=True),
        Metric("f1_weighted", SHARE),
        Metric("loss", UNBOUNDED, lower_is_better=True),
        Metric("ece", SHARE, lower_is_better=True),
        Metric("brier", (0.0, 2.0), lower_is_better=True),  # of a label at most 1
        Metric("roc_auc_macro", SHARE, over_classes=True),
        Metric("roc_auc_weighted", SHARE),
        Metric("average_precision_macro", SHARE, over_classes=True),
        Metric("average_precision_weighted", SHARE),
        Metric("precision_macro", SHARE, over_classes=True, in_table=False),
        Metric("precision_micro", SHARE, in_table=False),
        Metric("precision_weighted", SHARE, in_table=False),
        Metric("recall_macro", SHARE, over_classes=True, in_table=False),
        Metric("recall_micro", SHARE, in_table=False),
        Metric("recall_weighted", SHARE, in_table=False),
    ),
    "regression": (
        Metric("mae", UNBOUNDED, lower_is_better=True),
        Metric("mse", UNBOUNDED, lower_is_better=True),
        Metric("rmse", UNBOUNDED, lower_is_better=True),
        Metric("r2", (-math.inf, 1.0)),
        Metric("pearson", CORRELATION),
        Metric("spearman", CORRELATION),
        Metric("loss", UNBOUNDED, lower_is_better=True),
    ),
}
"""All metrics by `problem_type`, in the order of the table."""

_VIEWS: dict[str, dict[View, tuple[str, ...]]] = {
    "single_label_classification": {
        "cards": ("accuracy", "f1_macro", "mcc"),
        "compared": ("accuracy", "balanced_accuracy", "f1_macro", "mcc", "loss"),
        "slices": ("accuracy", "f1_macro", "balanced_accuracy", "mcc", "loss"),
        "tuning": ("accuracy", "balanced_accuracy", "f1_macro", "f1_weighted", "mcc", "loss"),
    },
    "multi_label_classification": {
        "cards": ("subset_accuracy", "f1_micro", "f1_macro"),
        "compared": ("subset_accuracy", "f1_micro", "f1_macro", "hamming_loss", "loss"),
        "slices": ("subset_accuracy", "f1_micro", "f1_macro", "hamming_loss", "loss"),
    },
    "regression": {
        "cards": ("r2", "mae", "rmse"),
        "compared": ("mae", "rmse", "r2", "pearson", "loss"),
        "slices": ("mae", "rmse", "r2", "pearson"),
    },
}
"""Where else metrics are shown: the large figures of the page, of which the first is the most important metric;
comparisons and summaries of runs; slices, of which only the first two are printed; and what the best epoch of a tuning
can be chosen by."""

OF_CLASS = ("precision", "recall", "f1")
"""The metrics of each class or label."""

OF_OUTPUT = tuple(metric.name for metric in METRICS["regression"] if metric.name != "loss")
"""The metrics of each output of a regression; the loss is that of all outputs together."""

_BY_NAME = {metric.name: metric for metrics in METRICS.values() for metric in metrics}


def metric_names(problem: str, view: View) -> tuple[str, ...]:
    """Returns the names of the metrics that a view shows for a `problem_type`, in its order; none if it is unknown."""
    if view == "table":
        return tuple(metric.name for metric in METRICS.get(problem, ()) if metric.in_table)
    return _VIEWS.get(problem, {}).get(view, ())


def accuracy_names(problem: str) -> tuple[str, ...]:
    """Returns the names of the metrics that equal the share of correct examples, the most usual one first."""
    return tuple(metric.name for metric in METRICS[problem] if metric.is_accuracy)


def averages_classes(name: str) -> bool:
    """Returns whether a metric is a mean over classes that all have the same weight."""
    return name in _BY_NAME and _BY_NAME[name].over_classes


def range_of(name: str) -> tuple[float, float]:
    """Returns the smallest and largest possible value of a metric, as far as it is known.

    Args:
        name: of the metric, or of that of a class or output, behind a slash.
    """
    alone = name.rpartition("/")[2]
    if alone in OF_CLASS:
        return SHARE
    return _BY_NAME[alone].range if alone in _BY_NAME else (-math.inf, math.inf)


def is_unbounded(name: str) -> bool:
    """Returns whether a metric is in nats or in the units of the data, and can be as large as they are."""
    return name in _BY_NAME and _BY_NAME[name].range == UNBOUNDED


def is_at_most_one(name: str) -> bool:
    """Returns whether a metric is from 0 to 1, or from -1 to 1; False for a custom metric, whose range is unknown."""
    return name in _BY_NAME and _BY_NAME[name].range in (SHARE, CORRELATION)


def lower_is_better(name: str) -> bool:
    """Returns whether smaller values of a metric are better."""
    return name in _BY_NAME and _BY_NAME[name].lower_is_better
