"""Statistics of an evaluation: intervals for metrics, and paired tests for comparing models. Pure, and seeded.

`metric_intervals` and `paired_differences` serve the metrics of `dist_eval.compute_metrics`, and `class_intervals` the
figures of each class. Other metrics take part as a `Statistic`: `Sums` where they depend on sums over examples, and
`OfRows` where they are any function at all.
"""

from __future__ import annotations

from dist_eval.statistics.by_class import class_intervals
from dist_eval.statistics.calibration import calibration_facts
from dist_eval.statistics.classification import Classified
from dist_eval.statistics.evidence import Evidence, gather_evidence
from dist_eval.statistics.intervals import Interval, bca, percentile, wilson
from dist_eval.statistics.metrics import metric_intervals
from dist_eval.statistics.paired import McNemar, PairedDifference, bonett_price, holm, mcnemar, paired_differences
from dist_eval.statistics.ranking import AreasUnderCurves
from dist_eval.statistics.resampling import Difference, OfRows, Statistic, Sums, Units

__all__ = [
    "AreasUnderCurves",
    "Classified",
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
    "calibration_facts",
    "class_intervals",
    "gather_evidence",
    "holm",
    "mcnemar",
    "metric_intervals",
    "paired_differences",
    "percentile",
    "wilson",
]
