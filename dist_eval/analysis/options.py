"""Analysis beyond the metrics: intervals, calibration, the most confident mistakes, and slices. Free of side effects.

A run does this at its end, and again from its saved predictions when it is restarted with other options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dist_eval.analysis.mistakes import confident_mistakes
from dist_eval.analysis.slices import LENGTH, Slicing, compute_slices
from dist_eval.data.columns import group_numbers
from dist_eval.data.selection import positions_of
from dist_eval.metrics.computing import Metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import REGRESSION
from dist_eval.results.scores import Analysis, ClassResults, Groups, OutputResults
from dist_eval.statistics import Statistic, class_intervals, compute_calibration, metric_intervals

if TYPE_CHECKING:
    from dist_eval.data.dataset import TokenizedDataset
    from dist_eval.data.prompted_rows import PromptedRows
    from dist_eval.runs.saved_samples import Samples, Texts

SomeSamples = TypeVar("SomeSamples", Predictions, "Texts")


@dataclass(frozen=True)
class AnalysisOptions:
    """Options of the analysis."""

    confidence: float = 0.95  # confidence level of all intervals
    slicings: Sequence[Slicing] = ()  # the partitions of the dataset into slices
    group_column: str | None = None  # the column with the group (cluster) of each row, None if rows are independent
    # the group of each row of the dataset, int64 of shape [rows]
    group_of: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    rows: np.ndarray | None = None  # the selected rows, ascending, int64 of shape [rows]; None for all rows
    sampling_fraction: float = 0.0  # of the dataset; 0 for no correction of intervals

    @classmethod
    def of(
        cls,
        data: TokenizedDataset | PromptedRows,
        *,
        confidence: float,
        slice_by: Sequence[str],
        group_column: str | None,
    ) -> AnalysisOptions:
        """Builds the options with the columns of the dataset that they name; raises DataError if a group is missing."""
        slicings = [
            Slicing.of_lengths(data.lengths, data.rows)
            if name == LENGTH
            else Slicing.of_column(name, data.column(name), data.rows)
            for name in dict.fromkeys(slice_by)
        ]
        if group_column is None:
            return cls(confidence, slicings, sampling_fraction=data.sampling_fraction)
        groups = group_numbers(data.column(group_column), group_column, data.where)
        return cls(confidence, slicings, group_column, groups, data.rows)

    def grouped(self, samples: SomeSamples) -> SomeSamples:
        """Returns samples with the groups of these options."""
        has_groups = self.group_column is not None
        return samples.in_groups(self.group_of[positions_of(samples.index, self.rows)] if has_groups else None)

    def groups_summary(self, samples: Samples) -> Groups | None:
        """Returns the section of results on the groups of samples; None without groups."""
        if samples.group is None or self.group_column is None:
            return None
        sizes = np.unique(samples.group, return_counts=True)[1]
        return Groups(column=self.group_column, count=len(sizes), largest=int(sizes.max()))


def columns_asked_for(slice_by: Sequence[str], group_column: str | None) -> list[str]:
    """Returns the dataset columns that `AnalysisOptions.of` needs."""
    return [*(name for name in slice_by if name != LENGTH), *([] if group_column is None else [group_column])]


def analyse(
    predictions: Predictions, metrics: Metrics, options: AnalysisOptions, extra_statistics: Sequence[Statistic] = ()
) -> Analysis:
    """Computes the sections of `results.json` that depend on the options of the analysis.

    Predictions are in dataset order, at least one, with their groups (see `AnalysisOptions.grouped`).
    `metric_intervals` describes `extra_statistics`.
    """
    names = metrics.label_names
    level: dict[str, Any] = {"confidence": options.confidence, "sampling_fraction": options.sampling_fraction}
    intervals = metric_intervals(predictions, metrics, extra_statistics=extra_statistics, **level)
    is_regression = metrics.problem == REGRESSION.name
    of_classes = class_intervals(predictions, metrics, intervals, **level)
    rows = [{**dict(row), "intervals": of_row} for row, of_row in zip(metrics.per_class, of_classes, strict=True)]
    return Analysis(
        intervals=intervals,
        per_class=[OutputResults(**row) for row in rows] if is_regression else [ClassResults(**row) for row in rows],
        groups=options.groups_summary(predictions),
        calibration=None if is_regression else compute_calibration(predictions, names, **level),
        confident_mistakes=confident_mistakes(predictions, names),
        slices=[
            entry for slicing in options.slicings for entry in compute_slices(predictions, slicing, names, **level)
        ],
    )
