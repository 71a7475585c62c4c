"""The catalogue of metrics: the formula of each, its properties, and where it is shown.

A metric is a function of weighted sums: weights of 1 give the metric of the data, and the weights of a resample give
that of the resample. To add a metric of the sums in `ClassCounts`, add it only here; `computing` may add a reason why
it is undefined. Metrics of other sums, or of ranked scores, are in `definitions`. A metric of each class or output also
has a field in `dist_eval.results.scores`.

Imports no library, because command lines import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

View = Literal["table", "cards", "compared", "slices", "tuning"]
Source = Literal["counts", "losses", "brier", "errors"]

SHARE, CORRELATION, UNBOUNDED = (0.0, 1.0), (-1.0, 1.0), (0.0, math.inf)


@dataclass(frozen=True)
class Metric:
    """A metric of a problem type."""

    name: str  # as in `results.json`
    range: tuple[float, float]  # smallest and largest possible value, the same in all problem types with this name
    # the metric as a function of sums (see `ClassCounts`), whose last axis is resamples; NaN where undefined. With
    # "errors" it may return a row per output, whose mean is the metric. None if it is not a function of sums.
    formula: Callable[[Any], Any] | None = None
    source: Source = "counts"  # the sums
    lower_is_better: bool = False  # whether 0 is the best value
    # whether it is a mean over classes that gives full weight to a class with few examples or predictions; undefined
    # for a slice with few examples of a class
    over_classes: bool = False
    is_accuracy: bool = False  # whether it equals the fraction of correct examples, so that Wilson's interval applies
    in_table: bool = True  # in the printed table and at the top of reports; others are under "more metrics"


def _average(
    ratio: str, average: Literal["macro", "micro", "weighted"], *, is_accuracy: bool = False, in_table: bool = True
) -> Metric:
    """Returns an average over classes of one of the ratios `OF_CLASS`."""
    return Metric(
        f"{ratio}_{average}",
        SHARE,
        lambda c: getattr(c, average)(ratio),
        over_classes=average == "macro",
        is_accuracy=is_accuracy,
        in_table=in_table,
    )


def _loss(source: Source) -> Metric:
    return Metric("loss", UNBOUNDED, lambda s: s.loss / s.examples, source, lower_is_better=True)


_CALIBRATION = (
    Metric("ece", SHARE, lower_is_better=True),
    Metric("brier", (0.0, 2.0), lambda s: s.brier / s.examples, "brier", lower_is_better=True),  # at most 1 for a label
)

# all metrics by `problem_type`, in the order of the table
METRICS = {
    "single_label_classification": (
        Metric("accuracy", SHARE, lambda c: c.right / c.examples, is_accuracy=True),
        Metric("balanced_accuracy", SHARE, lambda c: c.mean("recall", c.support > 0), over_classes=True),
        _average("f1", "macro"),
        _average("f1", "weighted"),
        Metric("mcc", CORRELATION, lambda c: c.matthews_correlation()),
        _loss("losses"),
        Metric("log_loss", UNBOUNDED, lambda s: s.log_loss / s.examples, "losses", lower_is_better=True),
        *_CALIBRATION,
        Metric("roc_auc", SHARE),  # for two classes; the next two are for more
        Metric("roc_auc_ovr_macro", SHARE, over_classes=True),
        Metric("roc_auc_ovr_weighted", SHARE),
        _average("precision", "macro", in_table=False),
        _average("precision", "micro", in_table=False, is_accuracy=True),
        _average("precision", "weighted", in_table=False),
        _average("recall", "macro", in_table=False),
        _average("recall", "micro", in_table=False, is_accuracy=True),
        _average("recall", "weighted", in_table=False, is_accuracy=True),
        _average("f1", "micro", in_table=False, is_accuracy=True),
    ),
    "multi_label_classification": (
        Metric("subset_accuracy", SHARE, lambda c: c.right / c.examples, is_accuracy=True),
        Metric(
            "hamming_loss", SHARE, lambda c: c.wrong.sum(axis=0) / (c.examples * len(c.wrong)), lower_is_better=True
        ),
        _average("f1", "micro"),
        _average("f1", "macro"),
        _average("f1", "weighted"),
        _loss("counts"),
        *_CALIBRATION,
        Metric("roc_auc_macro", SHARE, over_classes=True),
        Metric("roc_auc_weighted", SHARE),
        Metric("average_precision_macro", SHARE, over_classes=True),
        Metric("average_precision_weighted", SHARE),
        _average("precision", "macro", in_table=False),
        _average("precision", "micro", in_table=False),
        _average("precision", "weighted", in_table=False),
        _average("recall", "macro", in_table=False),
        _average("recall", "micro", in_table=False),
        _average("recall", "weighted", in_table=False),
    ),
    "regression": (
        Metric("mae", UNBOUNDED, lambda s: s.absolute / s.examples, "errors", lower_is_better=True),
        Metric("mse", UNBOUNDED, lambda s: s.squared / s.examples, "errors", lower_is_better=True),
        Metric("rmse", UNBOUNDED, lambda s: (s.squared / s.examples) ** 0.5, "errors", lower_is_better=True),
        Metric("r2", (-math.inf, 1.0), lambda s: 1 - s.squared / s.label_spread, "errors"),
        Metric("pearson", CORRELATION, lambda s: s.pearson_correlation(), "errors"),
        Metric("spearman", CORRELATION),
        _loss("errors"),
    ),
}

# where else metrics are shown: at the top of the page (the most important first); in comparisons and summaries of runs;
# in slices (only the first two are printed); and as criteria for the best epoch of a tuning
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

# the metrics of each class or label
OF_CLASS = ("precision", "recall", "f1")

# the metrics of each output of a regression; the loss is for all outputs together
OF_OUTPUT = tuple(metric.name for metric in METRICS["regression"] if metric.name != "loss")

_BY_NAME = {metric.name: metric for metrics in METRICS.values() for metric in metrics}


def formulas(problem: str, source: Source) -> dict[str, Callable[[Any], Any]]:
    """Returns the formulas of a problem type's metrics for a source of sums, by name."""
    return {
        metric.name: metric.formula
        for metric in METRICS[problem]
        if metric.formula is not None and metric.source == source
    }


def metric_names(problem: str, view: View) -> tuple[str, ...]:
    """Returns the names of the metrics in a view of a `problem_type`, in order; none if the type is unknown."""
    if view == "table":
        return tuple(metric.name for metric in METRICS.get(problem, ()) if metric.in_table)
    return _VIEWS.get(problem, {}).get(view, ())


def accuracy_names(problem: str) -> tuple[str, ...]:
    """Returns the names of the metrics that equal the fraction of correct examples, the most common first."""
    return tuple(metric.name for metric in METRICS[problem] if metric.is_accuracy)


def range_of(name: str) -> tuple[float, float]:
    """Returns the range of a metric, or of an output's metric ("0/mae"); infinite if unknown."""
    alone = name.rpartition("/")[2]
    if alone in OF_CLASS:
        return SHARE
    return _BY_NAME[alone].range if alone in _BY_NAME else (-math.inf, math.inf)


def is_unbounded(name: str) -> bool:
    """Returns whether a metric is in nats or in the units of the data, without an upper limit."""
    return name in _BY_NAME and _BY_NAME[name].range == UNBOUNDED


def lower_is_better(name: str) -> bool:
    """Returns whether smaller values of a metric are better."""
    return name in _BY_NAME and _BY_NAME[name].lower_is_better
