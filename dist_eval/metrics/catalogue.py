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
        table: its place, from 1, in the table that a run prints and at the top of reports; None if it is not there.
        cards: its place among the large figures of the page; the first one is the most important metric.
        compared: its place in comparisons and summaries of runs.
        slices: its place among the metrics of a slice; only the first two are shown.
        tuning: its place among the metrics by which the best epoch of a tuning can be chosen.
    """

    name: str
    range: tuple[float, float]
    lower_is_better: bool = False
    over_classes: bool = False
    is_accuracy: bool = False
    table: int | None = None
    cards: int | None = None
    compared: int | None = None
    slices: int | None = None
    tuning: int | None = None


METRICS = {
    "single_label_classification": (
        Metric("accuracy", SHARE, table=1, cards=1, compared=1, slices=1, tuning=1, is_accuracy=True),
        Metric("balanced_accuracy", SHARE, table=2, compared=2, slices=3, tuning=2, over_classes=True),
        Metric("f1_macro", SHARE, table=3, cards=2, compared=3, slices=2, tuning=3, over_classes=True),
        Metric("f1_weighted", SHARE, table=4, tuning=4),
        Metric("mcc", CORRELATION, table=5, cards=3, compared=4, slices=4, tuning=5),
        Metric("loss", UNBOUNDED, table=6, compared=5, slices=5, tuning=6, lower_is_better=True),
        Metric("log_loss", UNBOUNDED, table=7, lower_is_better=True),
        Metric("ece", SHARE, table=8, lower_is_better=True),
        Metric("brier", (0.0, 2.0), table=9, lower_is_better=True),
        Metric("roc_auc", SHARE, table=10),  # of two classes; the next two are of more
        Metric("roc_auc_ovr_macro", SHARE, table=11, over_classes=True),
        Metric("roc_auc_ovr_weighted", SHARE, table=12),
        Metric("precision_macro", SHARE, over_classes=True),
        Metric("precision_micro", SHARE, is_accuracy=True),
        Metric("precision_weighted", SHARE),
        Metric("recall_macro", SHARE, over_classes=True),
        Metric("recall_micro", SHARE, is_accuracy=True),
        Metric("recall_weighted", SHARE, is_accuracy=True),
        Metric("f1_micro", SHARE, is_accuracy=True),
    ),
    "multi_label_classification": (
        Metric("subset_accuracy", SHARE, table=1, cards=1, compared=1, slices=1, is_accuracy=True),
        Metric("hamming_loss", SHARE, table=2, compared=4, slices=4, lower_is_better=True),
        Metric("f1_micro", SHARE, table=3, cards=2, compared=2, slices=2),
        Metric("f1_macro", SHARE, table=4, cards=3, compared=3, slices=3, over_classes=True),
        Metric("f1_weighted", SHARE, table=5),
        Metric("loss", UNBOUNDED, table=6, compared=5, slices=5, lower_is_better=True),
        Metric("ece", SHARE, table=7, lower_is_better=True),
        Metric("brier", (0.0, 2.0), table=8, lower_is_better=True),  # of a label at most 1
        Metric("roc_auc_macro", SHARE, table=9, over_classes=True),
        Metric("roc_auc_weighted", SHARE, table=10),
        Metric("average_precision_macro", SHARE, table=11, over_classes=True),
        Metric("average_precision_weighted", SHARE, table=12),
        Metric("precision_macro", SHARE, over_classes=True),
        Metric("precision_micro", SHARE),
        Metric("precision_weighted", SHARE),
        Metric("recall_macro", SHARE, over_classes=True),
        Metric("recall_micro", SHARE),
        Metric("recall_weighted", SHARE),
    ),
    "regression": (
        Metric("mae", UNBOUNDED, table=1, cards=2, compared=1, slices=1, lower_is_better=True),
        Metric("mse", UNBOUNDED, table=2, lower_is_better=True),
        Metric("rmse", UNBOUNDED, table=3, cards=3, compared=2, slices=2, lower_is_better=True),
        Metric("r2", (-math.inf, 1.0), table=4, cards=1, compared=3, slices=3),
        Metric("pearson", CORRELATION, table=5, compared=4, slices=4),
        Metric("spearman", CORRELATION, table=6),
        Metric("loss", UNBOUNDED, table=7, compared=5, lower_is_better=True),
    ),
}
"""All metrics by `problem_type`, in the order of the table."""

OF_CLASS = ("precision", "recall", "f1")
"""The metrics of each class or label."""

OF_OUTPUT = tuple(metric.name for metric in METRICS["regression"] if metric.name != "loss")
"""The metrics of each output of a regression; the loss is that of all outputs together."""

_BY_NAME = {metric.name: metric for metrics in METRICS.values() for metric in metrics}


def metric_names(problem: str, view: View) -> tuple[str, ...]:
    """Returns the names of the metrics that a view shows for a `problem_type`, in its order; none if it is unknown."""
    places = {metric.name: getattr(metric, view) for metric in METRICS.get(problem, ())}
    return tuple(sorted((name for name, place in places.items() if place), key=lambda name: places[name]))


def accuracy_names(problem: str) -> tuple[str, ...]:
    """Returns the names of the metrics that equal the share of correct examples, the most usual one first."""
    return tuple(metric.name for metric in METRICS[problem] if metric.is_accuracy)


def averages_classes(name: str) -> bool:
    """Returns whether a metric is a mean over classes that all have the same weight."""
    return name in _BY_NAME and _BY_NAME[name].over_classes


def is_unbounded(name: str) -> bool:
    """Returns whether a metric is in nats or in the units of the data, and can be as large as they are."""
    return name in _BY_NAME and _BY_NAME[name].range == UNBOUNDED


def is_at_most_one(name: str) -> bool:
    """Returns whether a metric is from 0 to 1, or from -1 to 1; False for a custom metric, whose range is unknown."""
    return name in _BY_NAME and _BY_NAME[name].range in (SHARE, CORRELATION)


def lower_is_better(name: str) -> bool:
    """Returns whether smaller values of a metric are better."""
    return name in _BY_NAME and _BY_NAME[name].lower_is_better
