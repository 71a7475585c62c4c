"""A complete run, loaded for comparison, and the requirements for comparing two of them."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dist_eval.errors import RunError, one_line
from dist_eval.tables import format_count

if TYPE_CHECKING:
    import numpy as np

    from dist_eval.metrics.custom_metrics import CustomMetric
    from dist_eval.results.record import MetricValues
    from dist_eval.results.run import CompleteRun
    from dist_eval.runs.saved_predictions import SavedPredictions
    from dist_eval.statistics import Statistic

_CLASSES_NAMED = 5


@dataclass(frozen=True)
class Run:
    """A complete run, read back from its folder.

    Attributes:
        folder: the run's folder.
        results: content of `results.json`.
        predictions: predictions in dataset order, without failed examples.
        group: the group (cluster) of each example, int64 of shape [n]; None without groups.
        custom_statistics: statistics of custom metrics.
        sampling_fraction: share of the dataset that the intervals take into account (see `metric_intervals`).
    """

    folder: Path
    results: CompleteRun
    predictions: SavedPredictions
    group: np.ndarray | None = None
    custom_statistics: Sequence[Statistic] = ()
    sampling_fraction: float = 0.0

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Loads a run from its folder.

        Raises:
            RunError: the folder has no complete run, its files cannot be read, or its groups are missing.
        """
        import pyarrow as pa

        from dist_eval.runs.files import PREDICTIONS
        from dist_eval.runs.reading import read_results
        from dist_eval.runs.saved_predictions import GROUP, SavedPredictions, read_predictions

        results = read_results(folder)
        try:
            columns = read_predictions(folder / PREDICTIONS)
            predictions = SavedPredictions.of_columns(columns)
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise RunError(f"{folder / PREDICTIONS} cannot be read: {one_line(error)}.") from error
        group = columns.get(GROUP) if results.groups else None
        fraction = 0.0 if results.groups else results.data.sampling_fraction
        run = cls(folder, results, predictions, group, sampling_fraction=fraction)
        run._require_groups()
        return run

    def _require_groups(self) -> None:
        """Raises RunError if the files do not agree on the groups: an older run, or one that was interrupted."""
        import numpy as np

        groups = self.results.groups
        if groups and (self.group is None or len(np.unique(self.group)) != groups.count):
            raise RunError(
                f"{self.folder} has intervals over groups of {groups.column!r}, but its predictions.parquet does "
                "not hold these groups. Run the same command again: it writes them and sends nothing."
            )

    def with_custom_metrics(self, metrics: Sequence[CustomMetric]) -> Run:
        """Returns this run with custom metrics and their intervals, computed from its predictions."""
        from dist_eval.metrics.custom_metrics import Inputs, custom_results
        from dist_eval.statistics import Units, gather_evidence
        from dist_eval.statistics.custom import statistics_of_functions

        if not metrics:
            return self
        found = custom_results(metrics, Inputs.of(self.predictions))
        units = Units.single(len(self.predictions)) if self.group is None else Units.groups(self.group)
        statistics = statistics_of_functions(metrics, self.predictions, units)
        results, intervals = self.results, {}
        for statistic in statistics:
            values = {name: found.values[name] for name in statistic.names}
            defined = {name: value for name, value in values.items() if value is not None}
            evidence = gather_evidence(statistic, defined)
            intervals.update(
                {name: one.interval(self.confidence, self.sampling_fraction) for name, one in evidence.items()}
            )
        revised = {
            "metrics": {**results.metrics, **found.values},
            "undefined": {**results.undefined, **found.undefined},
            "intervals": {**results.intervals, **intervals},
        }
        return replace(self, results=results.model_copy(update=revised), custom_statistics=statistics)

    @property
    def rows(self) -> np.ndarray:
        """The rows of the dataset that the run is about, ascending: those with a prediction, and those that failed."""
        import numpy as np

        failed = np.asarray([one.index for one in self.results.failures], dtype=np.int64)
        return np.union1d(self.predictions.index, failed)

    def restricted(self, rows: np.ndarray, sampling_fraction: float) -> Run:
        """Returns this run on some rows of the dataset, with metrics and intervals computed from its predictions.

        Args:
            rows: the rows, at least one of them with a prediction, int64 of shape [rows].
            sampling_fraction: share of the dataset that they are a random sample of, else 0 (see `metric_intervals`).
        """
        import numpy as np

        from dist_eval.metrics.computing import compute_metrics
        from dist_eval.statistics import metric_intervals

        places = np.flatnonzero(np.isin(self.predictions.index, rows))
        group = None if self.group is None else _renumbered(self.group[places])
        if len(places) == len(self.predictions):
            return replace(self, group=group)
        predictions, groups = self.predictions.at(places), self.results.groups
        metrics = compute_metrics(predictions, self.label_names)
        if groups and group is not None:
            sizes = np.bincount(group)
            groups = groups.model_copy(update={"count": len(sizes), "largest": int(sizes.max())})
        fraction = 0.0 if groups else sampling_fraction
        intervals = metric_intervals(
            predictions, metrics, confidence=self.confidence, groups=group, sampling_fraction=fraction
        )
        revised = {
            "metrics": metrics.values,
            "undefined": metrics.undefined,
            "intervals": intervals,
            "custom_metrics": [],
            "groups": groups,
        }
        results = self.results.model_copy(update=revised)
        return replace(self, results=results, predictions=predictions, group=group, sampling_fraction=fraction)

    @property
    def confidence(self) -> float:
        """Confidence level of the run's intervals."""
        return self.results.confidence

    @property
    def problem(self) -> str:
        """Name of the problem type."""
        return self.results.problem_type

    @property
    def metrics(self) -> MetricValues:
        """The metrics by name."""
        return self.results.metrics

    @property
    def group_column(self) -> str | None:
        """The column whose groups are resampled as clusters; None if examples are independent."""
        return self.results.groups.column if self.results.groups else None

    @property
    def label_names(self) -> list[str]:
        """Names of the classes, labels or outputs."""
        return self.results.label_names


def _renumbered(group: np.ndarray) -> np.ndarray:
    """Returns groups numbered in the order in which they first appear, int64 of shape [n]."""
    import numpy as np

    _, first, number_of = np.unique(group, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number_of.reshape(-1)]


def on_common_rows(runs: Sequence[Run]) -> list[Run]:
    """Restricts runs to the rows that all of them evaluated, if some evaluated only a part of the same dataset.

    Raises:
        RunError: there is no such row.
    """
    import numpy as np

    selections = [run.results.data.selection for run in runs]
    first, *others = runs
    if not any(selections) or not all(first.results.data.has_texts_of(other.results.data) for other in others):
        return list(runs)
    common = functools.reduce(np.intersect1d, (run.rows for run in runs))
    if not all(np.isin(run.predictions.index, common).any() for run in runs):
        folders = " and ".join(str(run.folder) for run in runs)
        raise RunError(f"{folders} cannot be compared: there is no row of the dataset that all of them evaluated.")
    drawn = [selection for selection in selections if selection]
    is_random = all(selection.method != "first" for selection in drawn)
    return [run.restricted(common, len(common) / drawn[0].population if is_random else 0.0) for run in runs]


def require_comparable(first: Run, second: Run) -> None:
    """Requires that two runs evaluated the same examples.

    Raises:
        RunError: they did not; the message says what differs.
    """
    import numpy as np

    pair = f"{first.folder} and {second.folder} cannot be compared"
    if first.problem != second.problem:
        raise RunError(f"{pair}: one is a run of {first.problem}, the other of {second.problem}.")
    if not first.results.data.has_texts_of(second.results.data):
        sources = " and ".join(
            f"{run.results.data.source} ({format_count(len(run.predictions), 'example')})" for run in (first, second)
        )
        raise RunError(f"{pair}: their data differ, {sources}. Evaluate both on the same texts and labels.")
    if first.label_names != second.label_names:
        names = " and ".join(str(run.label_names[:_CLASSES_NAMED]) for run in (first, second))
        raise RunError(f"{pair}: the classes differ, {names}.")
    differing = np.setxor1d(first.predictions.index, second.predictions.index)
    if len(differing):
        raise RunError(
            f"{pair}: {format_count(len(differing), 'example')}, such as number {differing[0]}, failed in one of "
            f"them only. Start its "
            "command again to have them tried again."
        )
    if not np.array_equal(first.predictions.label, second.predictions.label):
        raise RunError(f"{pair}: the data are the same, but not the labels in predictions.parquet. Run both again.")
    _require_same_groups(first, second, pair)


def _require_same_groups(first: Run, second: Run, pair: str) -> None:
    import numpy as np

    if first.group_column != second.group_column:
        drawn = " and ".join(
            f"{run.folder} {'none' if run.group_column is None else repr(run.group_column)}" for run in (first, second)
        )
        again = first if first.group_column is None else second
        raise RunError(
            f"{pair}: their --group-column differs, {drawn}. Start the command of {again.folder} again with "
            f"--group-column {shlex.quote(first.group_column or second.group_column or '')}, which sends nothing."
        )
    if first.group is not None and second.group is not None and not np.array_equal(first.group, second.group):
        raise RunError(
            f"{pair}: column {first.group_column!r} puts examples into other groups in one than in the other. Start "
            "both commands again with the same dataset, which sends nothing."
        )
