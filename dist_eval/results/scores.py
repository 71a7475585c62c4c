"""How good the predictions are: metrics and their intervals, classes, calibration, slices, mistakes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dist_eval.record import Count, MetricValues, Reasons, Record, Share

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]

IntervalMethod = Literal["wilson", "bca", "percentile", "jackknife", "symmetric", "bonett-price"]
"""How an interval is computed (see `dist_eval.statistics.intervals`); the last two are of a difference of two runs."""


class Interval(Record):
    """A confidence interval of a metric, or why there is none."""

    confidence: Annotated[float, Field(gt=0, lt=1)]
    """Nominal coverage (confidence level), such as 0.95."""
    low: float | None = None
    """Lower limit, null if there is no interval."""
    high: float | None = None
    """Upper limit."""
    method: IntervalMethod | None = None
    """How it was computed (see dist_eval/statistics/intervals.py)."""
    resamples: Annotated[int, Field(ge=1)] | None = None
    """How many resamples it is based on, null if on none."""
    reason: str | None = None
    """Why there is no interval."""

    @property
    def limits(self) -> tuple[float, float] | None:
        """Both limits, None if there is no interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @model_validator(mode="after")
    def _has_ends_or_a_reason(self) -> Interval:
        ends = (self.low, self.high, self.method)
        if None in ends if self.reason is None else (ends != (None, None, None) or not self.reason):
            raise ValueError("an interval has limits and a method, or a reason why there is none")
        return self


Intervals = dict[str, Interval]


MOST_CELLS = 1 << 16
"""Cells of a sparse confusion matrix in `results.json`."""


class ConfusionMatrix(Record):
    """A confusion matrix of up to 256 classes, or of labels."""

    labels: list[str]
    """Names of the classes or labels."""
    matrix: list[list[Count]] | list[list[list[Count]]]
    """Rows are true classes, columns predicted ones; in a multi-label problem one matrix for each label, [[true
    negatives, false positives], [false negatives, true positives]]."""


class SparseConfusionMatrix(Record):
    """A confusion matrix of more classes: its cells with examples."""

    labels: list[str]
    """Names of the classes."""
    cells: Annotated[list[tuple[Count, Count, Count]], Field(max_length=MOST_CELLS)]
    """[number of the true class, number of the predicted one, examples], in the order of the classes. Of more than
    65,536 cells those with the most examples."""
    omitted: Count
    """Examples in the cells that are left out; predictions.parquet has them all."""


class Scores(Record):
    """The metrics of a run."""

    problem_type: ProblemType
    """Kind of labels: one class, several labels, or numbers."""
    metrics: MetricValues
    """Metric by name, null where undefined."""
    undefined: Reasons
    """For each metric that is null, why."""
    custom_metrics: list[str]
    """Names of those metrics that come from --metric."""
    majority_share: Share | None
    """Share of the most frequent class, null unless each example has one class."""
    confusion_matrix: ConfusionMatrix | SparseConfusionMatrix | None
    """Examples by true and predicted class, null for a regression."""


class ClassIntervals(Record):
    """The intervals of a class or a label.

    F1 has a reason instead of an interval if fewer than 20 examples are of the class. With groups, each metric has one
    if fewer than 20 groups contain examples (for precision: predictions) of the class.
    """

    precision: Interval
    """Interval of the precision."""
    recall: Interval
    """Interval of the recall."""
    f1: Interval
    """Interval of F1."""


class ClassResults(Record):
    """Metrics of a class or a label, null where undefined."""

    label: str
    """Its name."""
    precision: Share | None
    """Share of its predictions that are right."""
    recall: Share | None
    """Share of its examples that are found."""
    f1: Share | None
    """Harmonic mean of precision and recall."""
    support: Count
    """Examples."""
    intervals: ClassIntervals | None = None
    """Intervals of these metrics."""


class OutputIntervals(Record):
    """The intervals of an output of a regression; spearman has a reason instead of one if there are several outputs."""

    mae: Interval
    """Interval of the mean absolute error."""
    mse: Interval
    """Interval of the mean squared error."""
    rmse: Interval
    """Interval of the root mean squared error."""
    r2: Interval
    """Interval of the coefficient of determination."""
    pearson: Interval
    """Interval of Pearson's correlation."""
    spearman: Interval
    """Interval of Spearman's correlation."""


class OutputResults(Record):
    """Metrics of an output of a regression, null where undefined."""

    label: str
    """Its name."""
    mae: float | None
    """Mean absolute error."""
    mse: float | None
    """Mean squared error."""
    rmse: float | None
    """Root of the mean squared error."""
    r2: float | None
    """Coefficient of determination."""
    pearson: float | None
    """Pearson's correlation."""
    spearman: float | None
    """Spearman's correlation of ranks."""
    intervals: OutputIntervals | None = None
    """Intervals of these metrics."""


PerClass = list[ClassResults] | list[OutputResults]
"""One entry for each class or label, or for each output of a regression."""


class Groups(Record):
    """The groups (clusters) of examples that are not independent of each other."""

    column: str
    """The column that names the group of each row."""
    count: Annotated[int, Field(ge=1)]
    """Number of groups."""
    largest: Annotated[int, Field(ge=1)]
    """Examples in the largest one."""


class CalibrationBin(Record):
    """A bin of a reliability diagram."""

    low: Share
    """Where the bin begins; a value that is an edge belongs to the bin below."""
    high: Share
    """Where it ends."""
    n: Count
    """Examples in it."""
    mean_confidence: Share | None
    """Mean of their confidences, null without examples."""
    accuracy: Share | None
    """Share of them that are right, or have the label."""
    interval: Interval
    """Interval of the accuracy."""


CalibrationBins = Annotated[list[CalibrationBin], Field(min_length=15, max_length=15)]
"""15 bins of equal width, from 0 to 1."""


class LabelCalibration(Record):
    """Calibration of one of several labels."""

    label: str
    """Its name."""
    ece: Share
    """Expected calibration error."""
    brier: Share
    """Brier score."""
    bins: CalibrationBins
    """By its probability."""


class Calibration(Record):
    """How well the probabilities are calibrated."""

    ece: Share
    """Expected calibration error over 15 bins of equal width; in a multi-label problem the mean over the labels."""
    brier: Annotated[float, Field(ge=0, le=2)]
    """Brier score, summed over the classes (0 to 2); in a multi-label problem the mean over the labels (0 to 1)."""
    bins: CalibrationBins | None
    """By confidence in the predicted class; null in a multi-label problem."""
    per_label: list[LabelCalibration] | None
    """In a multi-label problem, for each label; else null."""


class ConfidentMistake(Record):
    """A mistake. The most confident ones are often label errors."""

    index: Count
    """Row of the dataset, counted from 0."""
    label: str | list[str]
    """The true class, or the labels of an example that may have several."""
    prediction: str | list[str]
    """The predicted class or labels."""
    probability: Share
    """Probability of the wrong prediction; in a multi-label problem that of the surest wrong answer, yes or no."""


SliceKind = Literal["value", "missing", "range", "rest"]


class Slice(Record):
    """A part of the data.

    Means over classes (f1_macro, balanced_accuracy) are null unless each class of the data has 20 examples in it.
    """

    by: str
    """The column, or length for the number of tokens."""
    kind: SliceKind
    """A value of the column, a missing one, a range of numbers, or all values that have no slice of their own."""
    value: str | None
    """The value, or what it is in words; null where it is missing."""
    low: float | None
    """Smallest number in a range, null for other kinds."""
    high: float | None
    """Largest number in a range."""
    n: Count
    """Examples in it that have a prediction."""
    metrics: MetricValues
    """Metric by name, null where undefined."""
    undefined: Reasons
    """For each metric that is null, why."""
    intervals: Intervals
    """By name of the metric."""


class Analysis(Record):
    """Analysis of the predictions beyond the metrics."""

    intervals: Intervals
    """By name of the metric. Those of fewer than 20 examples or groups have a reason instead of limits, except
    Wilson's."""
    per_class: PerClass
    """One entry for each class or label, or for each output of a regression."""
    groups: Groups | None
    """With --group-column: the clusters that resampling draws as a whole. The column group of predictions.parquet has
    the group of each example, by number; without --group-column there is no such column."""
    calibration: Calibration | None
    """How well the probabilities are calibrated, null for a regression (see dist_eval/metrics/calibration.py)."""
    confident_mistakes: Annotated[list[ConfidentMistake], Field(max_length=20)] | None
    """The mistakes that the classifier was surest of; null for a regression."""
    slices: list[Slice]
    """With --slice-by: parts of the data, column by column."""

    @property
    def label_names(self) -> list[str]:
        """Names of the classes, labels or outputs."""
        return [row.label for row in self.per_class]
