"""Compares runs: tests, differences with intervals, and p-values adjusted for multiple testing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dist_eval.compare.compared_run import Run, on_common_rows, require_comparable
from dist_eval.errors import ConfigError
from dist_eval.metrics.catalogue import accuracy_names, metric_names

if TYPE_CHECKING:
    import numpy as np

    from dist_eval.metrics.custom_metrics import CustomMetric
    from dist_eval.runs.saved_predictions import SavedPredictions
    from dist_eval.statistics import McNemar, PairedDifference

_NEEDS_CODE = "a custom metric: give --metric here what the run was given to compute its interval"


@dataclass(frozen=True)
class GroupedTest:
    """Test of equal accuracy for examples in groups: the cluster bootstrap.

    Attributes:
        only_first: examples that only the first model gets right.
        only_second: examples that only the second model gets right.
        p_value: two-sided p-value of the difference in the share of correct examples; None if unknown.
        reason: why there is no p-value.
        metric: name of the metric that is that share.
        column: the column that names the groups.
        count: number of groups.
    """

    only_first: int
    only_second: int
    p_value: float | None
    reason: str | None
    metric: str
    column: str
    count: int


@dataclass(frozen=True)
class Changes:
    """The examples whose predictions changed; all attributes are bool of shape [n].

    Attributes:
        changed: examples with different predictions.
        improved: examples that only the second model gets right; in a regression those where its loss is smaller.
        worsened: examples that only the first model gets right; in a regression those where its loss is smaller.
    """

    changed: np.ndarray
    improved: np.ndarray
    worsened: np.ndarray

    @classmethod
    def between(cls, first: SavedPredictions, second: SavedPredictions) -> Changes:
        """Compares the predictions of two models for the same examples."""
        from dist_eval.data.problem_types import REGRESSION, exact_matches

        changed = ~exact_matches(first.prediction, second.prediction)
        if first.problem is REGRESSION:
            return cls(changed, second.loss < first.loss, first.loss < second.loss)
        before, after = (exact_matches(one.label, one.prediction) for one in (first, second))
        return cls(changed, after & ~before, before & ~after)


@dataclass(frozen=True)
class Comparison:
    """A comparison of a run with the first one.

    Attributes:
        first: the first run.
        run: the other run.
        changes: the changed predictions.
        test: test of equal accuracy: McNemar's, or the cluster bootstrap if the runs have groups; None in a regression.
        test_corrected: its p-value, adjusted for the number of runs; None if there is none.
        differences: by name of the metric, its value in the run minus that in the first run.
        corrected: by name of the metric, the p-value adjusted for the number of runs and metrics; None if there is
            none.
    """

    first: Run
    run: Run
    changes: Changes
    test: McNemar | GroupedTest | None
    test_corrected: float | None
    differences: dict[str, PairedDifference]
    corrected: dict[str, float | None]


def compare(
    runs: Sequence[Run],
    *,
    metrics: Sequence[str] = (),
    custom_metrics: Sequence[CustomMetric] = (),
    confidence: float = 0.95,
    resamples: int | None = None,
) -> list[Comparison]:
    """Compares the first run with each of the others.

    Args:
        runs: at least two; if some are on a part of the dataset, all are compared on the rows that they have in common.
        metrics: names of the metrics to compare; by default the usual ones and the custom metrics that all
            runs have.
        custom_metrics: custom metrics to compute from the runs' predictions; `metrics` may contain their names.
        confidence: confidence level of the intervals.
        resamples: number of resamples (see `gather_evidence`).

    Returns:
        One comparison for each run except the first. P-values are adjusted by Holm's procedure: those of the tests of
        equal accuracy for the number of runs, those of the metrics for the number of runs times metrics.

    Raises:
        RunError: the runs did not evaluate the same examples.
        ConfigError: there is no such metric, or there is nothing to compare.
    """
    if len(runs) < 2:
        raise ConfigError("Nothing to compare with: name at least two runs.")
    first, *others = (run.with_custom_metrics(custom_metrics) for run in on_common_rows(runs))
    return compare_pairs(
        [(first, other) for other in others],
        metrics=metrics,
        custom_metrics=custom_metrics,
        confidence=confidence,
        resamples=resamples,
    )


def compare_pairs(
    pairs: Sequence[tuple[Run, Run]],
    *,
    metrics: Sequence[str] = (),
    custom_metrics: Sequence[CustomMetric] = (),
    confidence: float = 0.95,
    resamples: int | None = None,
) -> list[Comparison]:
    """Compares the runs of each pair.

    Args:
        pairs: at least one; all runs are on the same data, and have the custom metrics.
        metrics: see `compare`.
        custom_metrics: see `compare`.
        confidence: see `compare`.
        resamples: see `compare`.

    Returns:
        One comparison for each pair. P-values are adjusted as by `compare`, for the number of pairs.

    Raises:
        RunError: the runs did not evaluate the same examples.
        ConfigError: there is no such metric.
    """
    for pair in pairs:
        require_comparable(*pair)
    first, *others = {id(run): run for pair in pairs for run in pair}.values()
    names = _metric_names(first, others, metrics, custom_metrics)
    decisive = _share_of_right(first)
    wanted = {*names} if decisive is None else {*names, decisive}
    tables = [_differences(*pair, wanted, confidence, resamples) for pair in pairs]
    changes = [Changes.between(one.predictions, other.predictions) for one, other in pairs]
    tests = [
        None if decisive is None else _test(one, change, decisive, table[decisive])
        for (one, _), change, table in zip(pairs, changes, tables, strict=True)
    ]
    keys = [(number, name) for number in range(len(pairs)) for name in names]
    corrected = dict(zip(keys, _holm([tables[number][name].p_value for number, name in keys]), strict=True))
    corrected_tests = _holm([None if test is None else test.p_value for test in tests])
    return [
        Comparison(
            first=one,
            run=other,
            changes=changes[number],
            test=tests[number],
            test_corrected=corrected_tests[number],
            differences={name: tables[number][name] for name in names},
            corrected={name: corrected[number, name] for name in names},
        )
        for number, (one, other) in enumerate(pairs)
    ]


def _metric_names(
    first: Run, others: Sequence[Run], metrics: Sequence[str], custom_metrics: Sequence[CustomMetric]
) -> list[str]:
    """Returns the names of the metrics to compare; a custom metric may have several.

    Raises:
        ConfigError: a run does not have one of them.
    """
    if not metrics:
        shared = [name for name in first.results.custom_metrics if all(name in other.metrics for other in others)]
        metrics = [*metric_names(first.problem, "compared"), *shared, *(metric.name for metric in custom_metrics)]
    names_of_custom = {metric.name for metric in custom_metrics}
    names = []
    for name in metrics:
        several = [one for one in first.metrics if one.startswith(f"{name}/")] if name in names_of_custom else []
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
                f"--metric {name}: {first.folder} has it, but not {', '.join(lacking)}. Start the command of each of "
                "these again with its --metric, which sends nothing, or name its code here as package.module:name."
            )
    return list(dict.fromkeys(names))


def _share_of_right(run: Run) -> str | None:
    """Returns the name of the metric that is the share of correct examples; None in a regression."""
    return next(iter(accuracy_names(run.problem)), None)


def _differences(
    first: Run,
    other: Run,
    metrics: set[str],
    confidence: float,
    resamples: int | None,
) -> dict[str, PairedDifference]:
    from dist_eval.metrics.definitions import UNKNOWN
    from dist_eval.statistics import Interval, PairedDifference, paired_differences

    found = paired_differences(
        first.predictions,
        other.predictions,
        metrics=metrics,
        confidence=confidence,
        groups=first.group,
        extra_statistics=list(zip(first.custom_statistics, other.custom_statistics, strict=True)),
        resamples=resamples,
    )
    for name in metrics - found.keys():
        before, after = first.metrics[name], other.metrics[name]
        reason = _NEEDS_CODE if name in first.results.custom_metrics else UNKNOWN
        value = None if before is None or after is None else after - before
        found[name] = PairedDifference(value, Interval(confidence=confidence, reason=reason), None)
    return found


def _test(first: Run, change: Changes, metric: str, difference: PairedDifference) -> McNemar | GroupedTest:
    """Tests for equal accuracy; `difference` is that of the share of correct examples."""
    from dist_eval.metrics.units import FEW_UNITS
    from dist_eval.statistics import mcnemar

    groups = first.results.groups
    if groups is None:
        return mcnemar(change.worsened, change.improved)
    p_value, reason = difference.p_value, difference.interval.reason
    if groups.count < FEW_UNITS:
        p_value, reason = None, f"fewer than {FEW_UNITS} groups: too few for the bootstrap"
    return GroupedTest(
        only_first=int(change.worsened.sum()),
        only_second=int(change.improved.sum()),
        p_value=p_value,
        reason=None if p_value is not None else reason,
        metric=metric,
        column=groups.column,
        count=groups.count,
    )


def _holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusts the known p-values by Holm's procedure."""
    from dist_eval.statistics import holm

    corrected = iter(holm([value for value in p_values if value is not None]))
    return [None if value is None else next(corrected) for value in p_values]
