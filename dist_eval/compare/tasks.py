"""Compares runs on tasks of the lm-evaluation-harness, document by document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dist_eval.errors import ConfigError, RunError
from dist_eval.printable import printable_lines
from dist_eval.tables import Footnotes, text_table

if TYPE_CHECKING:
    from dist_eval.runs.task_samples import TaskRun
    from dist_eval.statistics import McNemar, PairedDifference

_ONE_HAS = "only one of the runs has values of documents"


@dataclass(frozen=True)
class MetricComparison:
    """A metric of a task in two runs.

    Attributes:
        task: the task.
        metric: the metric.
        filter: the harness' filter.
        documents: documents that both runs have.
        unpaired: documents that one of them lacks.
        first: its value in the first run, on all of its documents; None where undefined.
        second: its value in the other run.
        difference: on the documents that both have, the second one's minus the first one's.
        test: McNemar's, where values are 0 or 1.
        corrected: the p-value, adjusted for all metrics of all runs; None if there is none.
    """

    task: str
    metric: str
    filter: str
    documents: int
    unpaired: int
    first: float | None
    second: float | None
    difference: PairedDifference
    test: McNemar | None
    corrected: float | None = None


@dataclass(frozen=True)
class TaskComparison:
    """A comparison of a run with the first one.

    Attributes:
        first: folder of the first run.
        run: folder of the other run.
        metrics: of the tasks that both have.
        only_first: tasks that only the first run has.
        only_second: tasks that only the other run has.
    """

    first: Path
    run: Path
    metrics: list[MetricComparison]
    only_first: list[str]
    only_second: list[str]

    def to_json(self) -> dict[str, Any]:
        """Returns the comparison as JSON-compatible objects."""
        metrics = [
            {
                **asdict(one),
                "difference": {**asdict(one.difference), "interval": one.difference.interval.to_json()},
                "test": None if one.test is None else asdict(one.test),
            }
            for one in self.metrics
        ]
        return {
            "compared_with": str(self.first),
            "run": str(self.run),
            "metrics": metrics,
            "tasks_only_in_first": self.only_first,
            "tasks_only_in_run": self.only_second,
        }


def compare_tasks(
    runs: Sequence[TaskRun],
    *,
    metrics: Sequence[str] = (),
    confidence: float = 0.95,
    resamples: int | None = None,
) -> list[TaskComparison]:
    """Compares the first run with each of the others.

    Args:
        runs: at least two.
        metrics: names of the metrics to compare, by default all.
        confidence: confidence level of the intervals.
        resamples: number of resamples (see `gather_evidence`).

    Returns:
        One comparison for each run except the first. P-values are adjusted by Holm's procedure for all of them.

    Raises:
        RunError: two runs have no task in common, or a task but none of its documents.
        ConfigError: there is no such metric, or there is nothing to compare.
    """
    first, *others = runs
    if not others:
        raise ConfigError("Nothing to compare with: name at least two runs.")
    found = [compare_two(first, other, metrics=metrics, confidence=confidence, resamples=resamples) for other in others]
    known = {one.metric for comparison in found for one in comparison.metrics}
    missing = [name for name in metrics if name not in known]
    if missing:
        raise ConfigError(f"--metric {missing[0]}: no such metric in all of the runs.")
    return adjusted(found)


def adjusted(found: Sequence[TaskComparison]) -> list[TaskComparison]:
    """Returns comparisons with their p-values adjusted by Holm's procedure for all of them."""
    from dist_eval.statistics import holm

    p_values = [one.difference.p_value for comparison in found for one in comparison.metrics]
    corrected = iter(holm([value for value in p_values if value is not None]))
    return [
        replace(
            comparison,
            metrics=[
                one if one.difference.p_value is None else replace(one, corrected=next(corrected))
                for one in comparison.metrics
            ],
        )
        for comparison in found
    ]


def compare_two(
    first: TaskRun,
    other: TaskRun,
    *,
    metrics: Sequence[str] = (),
    confidence: float = 0.95,
    resamples: int | None = None,
) -> TaskComparison:
    """Compares two runs as `compare_tasks` does, without adjusting p-values.

    Raises:
        RunError: they have no task in common, or a task but none of its documents.
    """
    tasks = {name: name for name in first.results.tasks if name in other.results.tasks}
    if first.results.dataset and other.results.dataset:  # each generated texts for one dataset, whatever its name
        tasks = dict(zip(first.results.tasks, other.results.tasks, strict=True))
    if not tasks:
        raise RunError(f"{first.folder} and {other.folder} have no task in common.")
    compared = []
    only = {
        first.folder: [name for name in first.results.tasks if name not in tasks],
        other.folder: [name for name in other.results.tasks if name not in tasks.values()],
    }
    for task, others_task in tasks.items():
        before, after = first.values(task), other.values(others_task)
        for run, own, others in ((first, before, after), (other, after, before)):
            only[run.folder] += [f"{task}: {metric}" for metric, _ in own.keys() - others.keys()]
        for key in before:
            if key in after and (not metrics or key[0] in metrics):
                compared.append(
                    _compare_metric(
                        (first, other), (task, others_task), key, before[key], after[key], confidence, resamples
                    )
                )
    return TaskComparison(
        first.folder,
        other.folder,
        compared,
        only[first.folder],
        only[other.folder],
    )


def _compare_metric(
    runs: tuple[TaskRun, TaskRun],
    tasks: tuple[str, str],
    key: tuple[str, str],
    before: dict[Any, Any],
    after: dict[Any, Any],
    confidence: float,
    resamples: int | None,
) -> MetricComparison:
    from dist_eval.statistics import Interval, PairedDifference
    from dist_eval.statistics.documents import NO_MEAN, find_form

    both = [document for document in before if document in after]
    if before and after and not both:
        raise RunError(
            f"{runs[0].folder} and {runs[1].folder} have no document of the task {tasks[0]} in common: its data or its "
            "--limit differ."
        )
    values = [before[document] for document in both], [after[document] for document in both]
    metrics = [run.metrics(task)[key] for run, task in zip(runs, tasks, strict=True)]
    figures = [metric.value for metric in metrics]
    forms = [
        find_form(list(own.values()), metric.value, metric.aggregation)
        for own, metric in zip((before, after), metrics, strict=True)
    ]
    test = None
    if not both or None in forms or forms[0] is not forms[1]:
        reason = NO_MEAN if both else _ONE_HAS
        value = None if None in figures or len(both) < len(before) else figures[1] - figures[0]  # type: ignore[operator]
        difference = PairedDifference(value, Interval(confidence=confidence, reason=reason), None)
    else:
        difference, test = _difference(*values, forms[0], confidence, resamples)
    return MetricComparison(
        task=tasks[0],
        metric=key[0],
        filter=key[1],
        documents=len(both),
        unpaired=len(before) + len(after) - 2 * len(both),
        first=figures[0],
        second=figures[1],
        difference=difference,
        test=test,
    )


def _difference(
    before: Sequence[Any], after: Sequence[Any], form: Any, confidence: float, resamples: int | None
) -> tuple[PairedDifference, McNemar | None]:
    import numpy as np

    from dist_eval.statistics import Difference, PairedDifference, bonett_price, gather_evidence, mcnemar
    from dist_eval.statistics.documents import VALUE, document_statistic, is_share
    from dist_eval.statistics.intervals import make_interval

    difference = Difference(document_statistic(before, form), document_statistic(after, form))
    value = difference.observed()[VALUE]
    if is_share([*before, *after]):
        test = mcnemar(np.asarray(before, dtype=bool), np.asarray(after, dtype=bool))
        limits = bonett_price(test.only_first, test.only_second, len(before), confidence)
        interval = make_interval(value, limits, "bonett-price", confidence=confidence)
        return PairedDifference(value, interval, test.p_value), test
    evidence = gather_evidence(difference, {VALUE: value}, resamples=resamples)[VALUE]
    return PairedDifference(value, evidence.interval(confidence), evidence.p_value()), None


def format_task_comparisons(comparisons: Sequence[TaskComparison]) -> str:
    """Returns the comparisons as text tables."""
    from dist_eval.compare.tables import short_names

    lines = [f"compared with {comparisons[0].first}"]
    names = short_names([comparisons[0].first, *(one.run for one in comparisons)])
    family = sum(metric.corrected is not None for one in comparisons for metric in one.metrics)
    for one, name in zip(comparisons, names[1:], strict=True):
        notes = Footnotes()
        head = ["task", "metric", names[0], name, "difference", "p", f"p (Holm, {family})", "documents"]
        lines += ["", f"{one.run}:", *text_table([head, *task_rows(one, notes)]), *notes.lines()]
        for folder, tasks in ((one.first, one.only_first), (one.run, one.only_second)):
            if tasks:
                lines.append(f"only {folder} has {', '.join(tasks)}")
    return printable_lines("\n".join(lines))


def task_rows(one: TaskComparison, notes: Footnotes) -> list[list[str]]:
    """Returns for each metric: task, name, values in both runs, difference, p-value, that by Holm, and documents."""
    from dist_eval.compare.tables import p_words, signed_words
    from dist_eval.metrics.words import metric_words

    rows = []
    for metric in one.metrics:
        figures = (
            "-" if value is None else metric_words(metric.metric, value) for value in (metric.first, metric.second)
        )
        also = f" of {metric.documents + metric.unpaired}" if metric.unpaired else ""
        rows.append(
            [
                metric.task,
                metric.metric if metric.filter == "none" else f"{metric.metric} ({metric.filter})",
                *figures,
                signed_words(metric.metric, metric.difference, notes),
                p_words(metric.difference.p_value, metric.difference),
                p_words(metric.corrected, metric.difference),
                f"{metric.documents}{also}",
            ]
        )
    return rows
