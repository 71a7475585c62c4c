"""Statistics of an evaluation: confidence intervals for metrics, and paired tests that compare two models.

`metric_intervals` and `paired_differences` cover the metrics of `dist_eval.compute_metrics`, and `class_intervals`
covers those of each class. Any other metric can be added as a `Statistic`: as `Sums` if it depends only on sums over
examples, or as `OfRows` for an arbitrary function of the examples. `documents` has metrics over documents of tasks and
generated texts, `sampling` corrects intervals of random samples. Everything here is seeded and free of side effects.
"""

from __future__ import annotations

from dist_eval.metrics.ranking import AreasUnderCurves
from dist_eval.metrics.statistic import Difference, OfRows, Statistic, Sums
from dist_eval.metrics.units import Units
from dist_eval.results.scores import Interval
from dist_eval.statistics.by_class import class_intervals
from dist_eval.statistics.calibration import compute_calibration
from dist_eval.statistics.evidence import Evidence, gather_evidence
from dist_eval.statistics.intervals import bca, percentile, wilson
from dist_eval.statistics.metrics import metric_intervals
from dist_eval.statistics.paired import McNemar, PairedDifference, bonett_price, holm, mcnemar, paired_differences

__all__ = [
    "AreasUnderCurves",
    "Difference",
    "Evidence",
    "Interval",
    "McNemar",
    "OfRows",
    "PairedDifference",
    "Statistic",
    "Sums",
    "Units",
    "bca",
    "bonett_price",
    "class_intervals",
    "compute_calibration",
    "gather_evidence",
    "holm",
    "mcnemar",
    "metric_intervals",
    "paired_differences",
    "percentile",
    "wilson",
]
