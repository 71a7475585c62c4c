"""Compares evaluations on the same dataset, example by example."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dist_eval.compare.changes import Changes
from dist_eval.compare.comparison import Change, ComparedRun, Comparison, GroupedTest, renumbered, require_same_groups
from dist_eval.errors import ConfigError, RunError
from dist_eval.metrics.catalogue import accuracy_names, metric_names
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.custom_metrics import CustomMetric, MetricInputs, custom_results
from dist_eval.metrics.definitions import UNKNOWN
from dist_eval.metrics.metric_loading import load_metrics
from dist_eval.metrics.predictions import Predictions
from dist_eval.metrics.units import FEW_UNITS
from dist_eval.petals.base_model.problem_types import PROBLEMS, REGRESSION, exact_matches
from dist_eval.record import MetricValues
from dist_eval.results.run import CompleteRun
from dist_eval.results.scores import Intervals
from dist_eval.runs.reading import evaluated_rows, read_table
from dist_eval.runs.saved_samples import read_predictions
from dist_eval.statistics import (
    Interval,
    McNemar,
    PairedDifference,
    Statistic,
    mcnemar,
    metric_intervals,
    paired_differences,
)
from dist_eval.statistics.evidence import bootstrap_intervals
from dist_eval.statistics.metrics import statistics_of_functions
from dist_eval.tables import format_count

_NEEDS_CODE = "a custom metric: give --metric here what the run was given to compute its interval"
_CLASSES_NAMED = 5


@dataclass(frozen=True)
class ComparedEvaluation(ComparedRun):
    """A complete evaluation, read back from its folder."""

    KIND = "predictions of labels"

    folder: Path  # the run's folder
    results: CompleteRun  # content of `results.json`
    predictions: Predictions  # predictions in dataset order, without failed examples
    custom_statistics: Sequence[Statistic] = ()  # statistics of custom metrics
    sampling_fraction: float = 0.0  # share of the dataset that the intervals take into account (see `metric_intervals`)

    @classmethod
    def load(cls, folder: Path, results: CompleteRun) -> ComparedEvaluation:
        """Loads the predictions of a run with these results from its folder."""
        predictions = read_table(folder, read_predictions)
        groups = results.groups
        if groups is None:
            return cls(folder, results, predictions.in_groups(None), sampling_fraction=results.data.sampling_fraction)
        if predictions.group is None or len(np.unique(predictions.group)) != groups.count:  # older, or interrupted
            raise RunError(
                f"{folder} has intervals over groups of {groups.column!r}, but its predictions.parquet does not hold "
                "these groups. Run the same command again: it writes them and sends nothing."
            )
        return cls(folder, results, predictions)

    @classmethod
    def load_metrics(cls, given: Sequence[str], runs: Sequence[ComparedEvaluation]) -> tuple[list[str], list[Any]]:
        """Returns names of metrics, and those that had to be loaded: files and code that the first run lacks."""
        first = runs[0]
        specs = [
            name for name in given if name not in first.metrics and (":" in name or "=" in name or Path(name).exists())
        ]
        taken = [name for name in first.metrics if name not in first.results.custom_metrics]
        problem, outputs = PROBLEMS[first.results.problem_type], first.predictions.num_labels
        loaded = load_metrics(specs, problem, outputs, taken) if specs else []
        names = {metric.spec: metric.name for metric in loaded}
        return [names.get(name, name) for name in given], loaded

    @classmethod
    def prepare(
        cls, runs: Sequence[ComparedEvaluation], custom_metrics: Sequence[CustomMetric]
    ) -> list[ComparedEvaluation]:
        """Restricts runs to their common rows, and computes custom metrics from their predictions."""
        first, *others = _on_common_rows(runs)
        others = [other.with_classes_of(first) for other in others]
        for other in others:
            _require_comparable(first, other)
        return [run.with_custom_metrics(custom_metrics) for run in (first, *others)]

    def with_classes_of(self, first: ComparedEvaluation) -> ComparedEvaluation:
        """Returns this run with its classes in the order of another run's, if both have the same names.

        Drops recorded values of custom metrics, which may refer to classes by number.
        """
        names, rows = first.results.label_names, {row.label: row for row in self.results.per_class}
        own = self.results.label_names
        if own == names or len(rows) < len(own) or rows.keys() != {*names}:
            return self
        custom = {*self.results.custom_metrics}
        revised = {
            "per_class": [rows[name] for name in names],
            "custom_metrics": [],
            "metrics": {name: value for name, value in self.metrics.items() if name not in custom},
        }
        predictions = self.predictions.with_classes([own.index(name) for name in names])
        return replace(self, results=self.results.model_copy(update=revised), predictions=predictions)

    def with_custom_metrics(self, metrics: Sequence[CustomMetric]) -> ComparedEvaluation:
        """Returns this run with custom metrics and their intervals, computed from its predictions."""
        if not metrics:
            return self
        custom = custom_results(metrics, MetricInputs.of(self.predictions))
        statistics = statistics_of_functions(metrics, self.predictions)
        results = self.results
        intervals: Intervals = {}
        for statistic in statistics:
            defined = {name: value for name in statistic.names if (value := custom.values[name]) is not None}
            intervals |= bootstrap_intervals(statistic, defined, self.confidence, self.sampling_fraction)
        revised = {
            "metrics": {**results.metrics, **custom.values},
            "undefined": {**results.undefined, **custom.undefined},
            "intervals": {**results.intervals, **intervals},
        }
        return replace(self, results=results.model_copy(update=revised), custom_statistics=statistics)

    def restricted(self, rows: np.ndarray, sampling_fraction: float) -> ComparedEvaluation:
        """Restricts this run to some rows of the dataset, and computes their metrics and intervals."""
        places = np.flatnonzero(np.isin(self.predictions.index, rows))
        is_whole = len(places) == len(self.predictions)
        predictions = self.predictions if is_whole else self.predictions.at(places)
        if predictions.group is not None:
            predictions = predictions.in_groups(renumbered(predictions.group))
        if is_whole:
            return replace(self, predictions=predictions)
        metrics, groups = compute_metrics(predictions, self.results.label_names), self.results.groups
        if groups and predictions.group is not None:
            sizes = np.bincount(predictions.group)
            groups = groups.model_copy(update={"count": len(sizes), "largest": int(sizes.max())})
        fraction = 0.0 if groups else sampling_fraction
        intervals = metric_intervals(predictions, metrics, confidence=self.confidence, sampling_fraction=fraction)
        revised = {
            "metrics": metrics.values,
            "undefined": metrics.undefined,
            "intervals": intervals,
            "custom_metrics": [],
            "groups": groups,
        }
        results = self.results.model_copy(update=revised)
        return replace(self, results=results, predictions=predictions, sampling_fraction=fraction)

    @property
    def metrics(self) -> MetricValues:
        """The metrics by name."""
        return self.results.metrics

    @classmethod
    def choose_metrics(
        cls,
        pairs: Sequence[tuple[ComparedEvaluation, ComparedEvaluation]],
        asked: Sequence[str],
        custom_metrics: Sequence[CustomMetric],
    ) -> list[str]:
        """Returns the names of the metrics to compare; a custom metric may have several."""
        first = pairs[0][0]
        others = [other for baseline, other in pairs if baseline is first]
        if not asked:
            shared = [name for name in first.results.custom_metrics if all(name in other.metrics for other in others)]
            usual = metric_names(first.results.problem_type, "compared")
            asked = [*usual, *shared, *(metric.name for metric in custom_metrics)]
        names_of_custom = {metric.name for metric in custom_metrics}
        names = []
        for name in asked:
            several = (
                [metric for metric in first.metrics if metric.startswith(f"{name}/")] if name in names_of_custom else []
            )
            names += several or [name]
        for name in names:
            if name not in first.metrics:
                raise ConfigError(
                    f"--metric {name}: no such metric; there are {', '.join(first.metrics)}, and your own as "
                    "package.module:name."
                )
            lacking = [str(other.folder) for other in others if name not in other.metrics]
            if lacking:
                raise ConfigError(
                    f"--metric {name}: {first.folder} has it, but not {', '.join(lacking)}. Start the command of each "
                    "of these again with its --metric, which sends nothing, or name its code here as "
                    "package.module:name."
                )
        return list(dict.fromkeys(names))

    def compare_with(
        self, other: ComparedEvaluation, metrics: Sequence[str], confidence: float, resamples: int | None
    ) -> Comparison:
        """Compares another run with this one, example by example."""
        is_regression = self.results.problem_type == REGRESSION.name
        accuracy = next(iter(accuracy_names(self.results.problem_type)), None)  # None for a regression
        differences = self._differences(other, {*metrics, *([accuracy] if accuracy else [])}, confidence, resamples)
        changes = Changes.between(self.predictions, other.predictions)
        what, largest = "predictions" if is_regression else "probabilities", self._largest_difference(other)
        return Comparison(
            first=self,
            run=other,
            differences={name: differences[name] for name in metrics},
            test=self._test(changes, accuracy, differences[accuracy]) if accuracy else None,
            remarks=[changes.describe(), f"{what} differ by at most {largest:.1e}" if largest else f"{what} are equal"],
            facts={**changes.counts(), "largest_difference": largest},
        )

    def _largest_difference(self, other: ComparedEvaluation) -> float:
        """Returns the largest difference of predictions of a regression, or of probabilities: column by column."""

        def columns(predictions: Predictions) -> Iterable[np.ndarray]:
            if self.results.problem_type == REGRESSION.name:
                return np.atleast_2d(predictions.prediction.T)
            return predictions.probabilities_of(range(predictions.num_labels))

        pairs = zip(columns(self.predictions), columns(other.predictions), strict=True)
        return max((float(abs(before - after).max(initial=0.0)) for before, after in pairs), default=0.0)

    def _differences(
        self, other: ComparedEvaluation, metrics: Collection[str], confidence: float, resamples: int | None
    ) -> dict[str, PairedDifference]:
        differences = paired_differences(
            self.predictions,
            other.predictions,
            metrics=metrics,
            confidence=confidence,
            extra_statistics=list(zip(self.custom_statistics, other.custom_statistics, strict=True)),
            resamples=resamples,
        )
        for name in set(metrics) - differences.keys():
            before, after = self.metrics[name], other.metrics[name]
            reason = _NEEDS_CODE if name in self.results.custom_metrics else UNKNOWN
            value = None if before is None or after is None else after - before
            differences[name] = PairedDifference(value, Interval(confidence=confidence, reason=reason), None)
        return differences

    def _test(self, changes: Changes, accuracy: str, difference: PairedDifference) -> McNemar | GroupedTest:
        """Tests whether accuracies are equal, given their difference."""
        groups = self.results.groups
        if groups is None:
            return mcnemar(changes.worsened, changes.improved)
        p_value, reason = difference.p_value, difference.interval.reason
        if groups.count < FEW_UNITS:
            p_value, reason = None, f"fewer than {FEW_UNITS} groups: too few for the bootstrap"
        return GroupedTest(
            only_first=int(changes.worsened.sum()),
            only_second=int(changes.improved.sum()),
            p_value=p_value,
            reason=None if p_value is not None else reason,
            metric=accuracy,
            column=groups.column,
            count=groups.count,
            resamples=None if p_value is None else difference.interval.resamples,
        )

    def changes_since(self, first: ComparedEvaluation) -> Iterator[Change]:
        """Yields the examples whose prediction changed."""
        yield from Changes.between(first.predictions, self.predictions).rows(first.results.label_names)

    @classmethod
    def describe_runs(cls, runs: Sequence[ComparedEvaluation]) -> str:
        """Describes the examples on which runs are compared."""
        first, is_part = runs[0], any(len(run.predictions) < run.results.coverage.seen for run in runs)
        which = ", those that all of the runs evaluated" if is_part else ""
        return f"{format_count(len(first.predictions), 'example')} of {first.results.data.source}{which}"

    def describe(self) -> dict[str, Any]:
        """Returns the number of examples, the name of the dataset, and the problem type."""
        source, problem = self.results.data.source, self.results.problem_type
        return {"examples": len(self.predictions), "source": source, "problem_type": problem}


def _on_common_rows(runs: Sequence[ComparedEvaluation]) -> list[ComparedEvaluation]:
    """Restricts runs to the rows that all of them evaluated, if some evaluated only a part of the same dataset."""
    selections = [run.results.data.selection for run in runs]
    first, *others = runs
    if not any(selections) or not all(first.results.data.has_texts_of(other.results.data) for other in others):
        return list(runs)
    common = functools.reduce(np.intersect1d, (evaluated_rows(run.results, [run.predictions]) for run in runs))
    if not all(np.isin(run.predictions.index, common).any() for run in runs):
        folders = " and ".join(str(run.folder) for run in runs)
        raise RunError(f"{folders} cannot be compared: there is no row of the dataset that all of them evaluated.")
    drawn = [selection for selection in selections if selection]
    is_random = all(selection.is_random for selection in drawn)
    return [run.restricted(common, len(common) / drawn[0].population if is_random else 0.0) for run in runs]


def _require_comparable(first: ComparedEvaluation, second: ComparedEvaluation) -> None:
    """Requires that two runs evaluated the same examples."""
    pair = f"{first.folder} and {second.folder} cannot be compared"
    if first.results.problem_type != second.results.problem_type:
        raise RunError(
            f"{pair}: one is a run of {first.results.problem_type}, the other of {second.results.problem_type}."
        )
    if not first.results.data.has_texts_of(second.results.data):
        sources = " and ".join(
            f"{run.results.data.source} ({format_count(len(run.predictions), 'example')})" for run in (first, second)
        )
        raise RunError(f"{pair}: their data differ, {sources}. Evaluate both on the same texts and labels.")
    if first.results.label_names != second.results.label_names:
        names = " and ".join(str(run.results.label_names[:_CLASSES_NAMED]) for run in (first, second))
        raise RunError(f"{pair}: the classes differ, {names}.")
    differing = np.setxor1d(first.predictions.index, second.predictions.index)
    if len(differing):
        raise RunError(
            f"{pair}: {format_count(len(differing), 'example')}, such as number {differing[0]}, failed in only one of "
            "them. Start its command again to try them again."
        )
    if not np.array_equal(first.predictions.label, second.predictions.label):
        rows = np.flatnonzero(~exact_matches(first.predictions.label, second.predictions.label))
        raise RunError(
            f"{pair}: {format_count(len(rows), 'example')}, such as number {first.predictions.index[rows[0]]}, "
            f"{'has' if len(rows) == 1 else 'have'} different labels. Evaluate both on the same texts and labels."
        )
    require_same_groups(
        [run.folder for run in (first, second)],
        [run.results.groups for run in (first, second)],
        [run.predictions.group for run in (first, second)],
    )
