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
    """Rows are true classes, columns predicted ones; with several labels each the matrix of each label, [[no taken for
    no, no for yes], [yes for no, yes for yes]]."""


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
    """What a label is: one class, several labels, or numbers."""
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

    That of f1 has a reason where fewer than 20 examples are of the class; with groups so has each one where fewer than
    20 groups have examples (or for precision, predictions) of it.
    """

    precision: Interval
    """Of the precision."""
    recall: Interval
    """Of the recall."""
    f1: Interval
    """Of F1."""


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
    """Of these metrics."""


class OutputIntervals(Record):
    """The intervals of an output of a regression; that of spearman has a reason where there are several outputs."""

    mae: Interval
    """Of the mean absolute error."""
    mse: Interval
    """Of the mean squared error."""
    rmse: Interval
    """Of its root."""
    r2: Interval
    """Of the coefficient of determination."""
    pearson: Interval
    """Of Pearson's correlation."""
    spearman: Interval
    """Of Spearman's correlation."""


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
    """Of these metrics."""


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
    """Of the accuracy."""


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
    """Whether probabilities are what they say."""

    ece: Share
    """Expected calibration error over 15 bins of equal width; with several labels each, the mean over the labels."""
    brier: Annotated[float, Field(ge=0, le=2)]
    """Brier score, summed over the classes (0 to 2); with several labels each, the mean over the labels (0 to 1)."""
    bins: CalibrationBins | None
    """By confidence in the predicted class; null with several labels each."""
    per_label: list[LabelCalibration] | None
    """With several labels each: of each label."""


class ConfidentMistake(Record):
    """A mistake. The most confident ones are often label errors."""

    index: Count
    """Row of the dataset, counted from 0."""
    label: str | list[str]
    """The true class, or the labels of an example that may have several."""
    prediction: str | list[str]
    """The predicted class or labels."""
    probability: Share
    """Of the wrong prediction; with several labels each, of the surest wrong answer, yes or no."""


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
    """What else follows from the predictions, and from the options of the analysis."""

    intervals: Intervals
    """By name of the metric. Those of fewer than 20 examples or groups have a reason instead of limits, except
    Wilson's."""
    per_class: PerClass
    """One entry for each class or label, or for each output of a regression."""
    groups: Groups | None
    """With --group-column: the clusters that resampling draws as a whole. The column group of predictions.parquet has
    the group of each example, by number; without --group-column there is no such column."""
    calibration: Calibration | None
    """Whether probabilities are what they say, null for a regression (see dist_eval/metrics/calibration.py)."""
    confident_mistakes: Annotated[list[ConfidentMistake], Field(max_length=20)] | None
    """The mistakes that the classifier was surest of; null for a regression."""
    slices: list[Slice]
    """With --slice-by: parts of the data, column by column."""

    @property
    def label_names(self) -> list[str]:
        """Names of the classes, labels or outputs."""
        return [row.label for row in self.per_class]
