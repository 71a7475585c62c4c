"""Compares runs of any kind: tests, differences with intervals, and p-values adjusted for multiple testing.

Kinds of runs differ in how samples are paired: `evaluations` pairs rows of a dataset, `tasks` documents of tasks.
"""

from __future__ import annotations

import itertools
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dist_eval.errors import ConfigError, RunError
from dist_eval.metrics.custom_metrics import CustomMetric
from dist_eval.metrics.texts import TextMetric
from dist_eval.results.scores import Groups
from dist_eval.statistics import McNemar, PairedDifference, holm

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class GroupedTest:
    """Test of equal accuracy for examples in groups: the cluster bootstrap."""

    only_first: int  # examples that only the first model gets right
    only_second: int  # examples that only the second model gets right
    p_value: float | None  # two-sided p-value of the difference in the share of correct examples; None if unknown
    reason: str | None  # why there is no p-value
    metric: str  # name of the metric that is that share
    column: str  # the column with the groups
    count: int  # number of groups
    resamples: int | None = None  # number of resamples; None without them


@dataclass(frozen=True)
class Change:
    """A sample that two runs answer differently."""

    index: str  # its position in the dataset, or the task and the number of the document
    label: str  # the right answer
    before: str  # the answer of the first run
    after: str  # the answer of the other run
    kind: str  # such as "gained" or "lost"


@dataclass(frozen=True)
class Comparison:
    """A comparison of a run with another one, the first."""

    first: ComparedRun  # the first run
    run: ComparedRun  # the other run
    differences: dict[str, PairedDifference]  # by name of the metric, its value in the run minus that in the first run
    # by name of the metric, the p-value adjusted for all runs and metrics; None if there is none
    corrected: dict[str, float | None] = field(default_factory=dict)
    # test of equal accuracy: McNemar's, or the cluster bootstrap if the runs have groups; None without one
    test: McNemar | GroupedTest | None = None
    test_corrected: float | None = None  # its p-value, adjusted for the number of runs; None if there is none
    # by name of the metric, the number of samples that are compared, and of those that are left out because not all of
    # the runs have them; empty if all have the same samples
    samples: dict[str, tuple[int, int]] = field(default_factory=dict)
    # by name of the metric, McNemar's test where the values of samples are 0 or 1; empty if `test` covers it
    tests: dict[str, McNemar] = field(default_factory=dict)
    remarks: Sequence[str] = ()  # further sentences
    facts: dict[str, Any] = field(default_factory=dict)  # the same as JSON values by name

    def changes(self) -> Iterator[Change]:
        """Yields the samples that the runs answer differently."""
        return self.run.changes_since(self.first)


class ComparedRun(ABC):
    """A complete run, read back from its folder."""

    folder: Path
    results: Any

    KIND: ClassVar[str]  # what it evaluated, for messages

    @property
    def confidence(self) -> float:
        """Confidence level of the run's intervals."""
        return self.results.confidence

    @classmethod
    @abstractmethod
    def load_metrics(cls, given: Sequence[str], runs: Sequence[Self]) -> tuple[list[str], list[Any]]:
        """Returns the names of all `given` metrics, and those that had to be loaded because the runs lack them."""

    @classmethod
    @abstractmethod
    def prepare(cls, runs: Sequence[Self], custom_metrics: Sequence[Any]) -> list[Self]:
        """Restricts runs to their common samples, and computes custom metrics from their answers."""

    @classmethod
    @abstractmethod
    def choose_metrics(
        cls, pairs: Sequence[tuple[Self, Self]], asked: Sequence[str], custom_metrics: Sequence[Any]
    ) -> list[str]:
        """Returns the names of the metrics to compare; raises ConfigError if there is no such metric."""

    @abstractmethod
    def compare_with(self, other: Self, metrics: Sequence[str], confidence: float, resamples: int | None) -> Comparison:
        """Compares another run with this one, without adjusting p-values; raises RunError if they do not match."""

    @abstractmethod
    def changes_since(self, first: Self) -> Iterator[Change]:
        """Yields the samples that this run answers differently from the first."""

    @classmethod
    @abstractmethod
    def describe_runs(cls, runs: Sequence[Self]) -> str:
        """Describes the samples on which runs are compared."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Returns the same as JSON-compatible values by name."""


def compare(
    runs: Sequence[ComparedRun],
    *,
    metrics: Sequence[str] = (),
    custom_metrics: Sequence[CustomMetric] | Sequence[TextMetric] | None = None,
    confidence: float = 0.95,
    resamples: int | None = None,
    all_pairs: bool = False,
) -> list[Comparison]:
    """Compares the first run with each of the others, or every two runs; a RunError says why runs cannot be compared.

    Args:
        runs: the runs, at least two.
        metrics: names of metrics; by default the usual ones. Unless `custom_metrics` is given, also names to load.
        custom_metrics: further metrics; None to load those of `metrics` that the runs do not have.
        confidence: confidence level of the intervals of differences.
        resamples: for each bootstrap interval; None for as many as take a bounded time.
        all_pairs: whether every two runs are compared.
    """
    if len(runs) < 2:
        raise ConfigError("Nothing to compare with: name at least two runs.")
    kind = type(runs[0])
    for run in runs:
        if type(run) is not kind:
            raise RunError(
                f"{runs[0].folder} and {run.folder} cannot be compared: {runs[0].folder} has {kind.KIND}, {run.folder} "
                f"{run.KIND}."
            )
    if custom_metrics is None:
        metrics, custom_metrics = kind.load_metrics(metrics, runs)
    prepared = kind.prepare(runs, custom_metrics)
    pairs = [*itertools.combinations(prepared, 2)] if all_pairs else [(prepared[0], run) for run in prepared[1:]]
    names = kind.choose_metrics(pairs, metrics, custom_metrics)
    comparisons = [first.compare_with(other, names, confidence, resamples) for first, other in pairs]
    return adjust_p_values(comparisons)


def adjust_p_values(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns comparisons with their p-values adjusted by Holm's procedure (1979) for all of them."""
    p_values = [difference.p_value for comparison in comparisons for difference in comparison.differences.values()]
    corrected = iter(_holm(p_values))
    tests = _holm([None if comparison.test is None else comparison.test.p_value for comparison in comparisons])
    return [
        replace(comparison, corrected={name: next(corrected) for name in comparison.differences}, test_corrected=test)
        for comparison, test in zip(comparisons, tests, strict=True)
    ]


def _holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusts the known p-values by Holm's procedure."""
    corrected = iter(holm([value for value in p_values if value is not None]))
    return [None if value is None else next(corrected) for value in p_values]


def require_same_groups(
    folders: Sequence[Path], groups: Sequence[Groups | None], numbers: Sequence[np.ndarray | None]
) -> None:
    """Requires that two runs have the same groups, by name, and by the group of each sample (see `renumbered`)."""
    pair = f"{folders[0]} and {folders[1]} cannot be compared"
    columns = [own and own.column for own in groups]
    if columns[0] != columns[1]:
        drawn = " and ".join(
            f"{folder} {'none' if column is None else repr(column)}"
            for folder, column in zip(folders, columns, strict=True)
        )
        again = folders[0] if columns[0] is None else folders[1]
        raise RunError(
            f"{pair}: their --group-column differs, {drawn}. Start the command of {again} again with "
            f"--group-column {shlex.quote(columns[0] or columns[1] or '')}, which sends nothing."
        )
    if numbers[0] is not None and numbers[1] is not None and not np.array_equal(numbers[0], numbers[1]):
        raise RunError(
            f"{pair}: column {columns[0]!r} puts examples into other groups in one than in the other. Start both "
            "commands again with the same dataset, which sends nothing."
        )


def renumbered(group: np.ndarray) -> np.ndarray:
    """Returns groups numbered in the order in which they first appear, int64 of shape [n]."""
    _, first, number_of = np.unique(group, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number_of.reshape(-1)]
