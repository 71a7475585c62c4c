"""Compares runs on tasks of the lm-evaluation-harness, or on prompts, document by document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dist_eval.analysis.options import AnalysisOptions
from dist_eval.analysis.texts import mean_metrics, measure_texts
from dist_eval.compare.comparison import Change, ComparedRun, Comparison, renumbered, require_same_groups
from dist_eval.errors import ConfigError, RunError
from dist_eval.metrics.metric_loading import load_text_metrics, name_of_spec
from dist_eval.metrics.texts import TextMetric
from dist_eval.results.tasks import TaskMetric
from dist_eval.runs.saved_samples import read_texts
from dist_eval.runs.task_samples import DocumentKey, Sample, TaskRun
from dist_eval.statistics import Interval, McNemar, PairedDifference
from dist_eval.statistics.documents import NO_MEAN, VALUE, Form, document_statistic, find_form, is_share
from dist_eval.statistics.paired import difference_of_shares, differences_of
from dist_eval.tables import csv_text

_ONE_HAS = "only one of the runs has values of documents"


class ComparedTasks(TaskRun, ComparedRun):
    """A complete run on tasks, or on prompts, read back from its folder."""

    KIND = "tasks of the lm-evaluation-harness, or generated texts"

    @classmethod
    def load_metrics(cls, given: Sequence[str], runs: Sequence[ComparedTasks]) -> tuple[list[str], list[Any]]:
        """Returns names of metrics, and those of texts that had to be loaded; metrics of tasks are the harness' own."""
        if runs[0].results.dataset is None:
            return list(given), []
        specs = [name for name in given if not all(run.has(name) for run in runs)]
        wanted = [name_of_spec(spec) for spec in specs]
        loaded = [metric for metric in load_text_metrics(specs) if metric.name in wanted]
        return [name_of_spec(name) if name in specs else name for name in given], loaded

    @classmethod
    def prepare(cls, runs: Sequence[ComparedTasks], custom_metrics: Sequence[TextMetric]) -> list[ComparedTasks]:
        """Gives equal names to the task of runs on prompts, and computes metrics from their texts."""
        first, *others = runs
        if first.results.dataset is None:
            return list(runs)
        named = [first, *(other._with_task_named_as_in(first) if other.results.dataset else other for other in others)]
        return [run._with_metrics(custom_metrics) if run.results.dataset else run for run in named]

    def has(self, metric: str) -> bool:
        """Returns whether a metric has this name, in some task, or as TASK/METRIC."""
        tasks = self.results.tasks.items()
        return any(metric in (own.metric, f"{name}/{own.key}") for name, task in tasks for own in task.metrics)

    def _with_metrics(self, metrics: Sequence[TextMetric]) -> ComparedTasks:
        """Returns a run on prompts with metrics computed from its texts, and their intervals."""
        dataset = self.results.dataset
        if not metrics or dataset is None:
            return self
        [(name, task)] = self.results.tasks.items()
        texts = replace(read_texts(self.folder / self.results.files.samples[name]), values={})
        pattern: Any = self.results.config.get("answer_pattern")
        texts, failed = measure_texts(texts, metrics, None if pattern is None else re.compile(pattern))
        if failed:
            metric, reason = next(iter(failed.items()))
            raise RunError(f"--metric {metric} has no value for {self.folder}: {reason}.")
        options = AnalysisOptions(
            self.confidence, sampling_fraction=dataset.selection.sampling_fraction if dataset.selection else 0.0
        )
        if dataset.groups and texts.group is not None:
            options = AnalysisOptions(self.confidence, (), dataset.groups.column, texts.group, texts.index)
        computed = mean_metrics(texts, {}, options)
        documents = [document for document, _ in self.samples(name)]
        values = {metric.key: dict(zip(documents, texts.numbers(metric.metric), strict=True)) for metric in computed}
        others = [metric for metric in task.metrics if metric.metric not in texts.values]
        revised = task.model_copy(update={"metrics": [*others, *computed]})
        return replace(
            self,
            results=self.results.model_copy(update={"tasks": {name: revised}}),
            _values={name: {**self.values(name), **values}},
        )

    def _with_task_named_as_in(self, first: ComparedTasks) -> ComparedTasks:
        """Names the single task of a run on prompts, whose name is the dataset's, as in another run."""
        [name], [task] = first.results.tasks, self.results.tasks.values()
        files = self.results.files.model_copy(
            update={"samples": {name: next(iter(self.results.files.samples.values()))}}
        )
        return replace(self, results=self.results.model_copy(update={"tasks": {name: task}, "files": files}))

    @classmethod
    def choose_metrics(
        cls,
        pairs: Sequence[tuple[ComparedTasks, ComparedTasks]],
        asked: Sequence[str],
        custom_metrics: Sequence[TextMetric],
    ) -> list[str]:
        """Returns the names of metrics to compare, as TASK/METRIC: those that both runs of a pair have."""
        known = {
            f"{task}/{key}": metric.metric
            for first, other in pairs
            for task in first.results.tasks.keys() & other.results.tasks.keys()
            for key, metric in first._metrics(task).items()
            if key in other._metrics(task)
        }
        for name in asked:
            if name not in (*known, *known.values()):
                raise ConfigError(f"--metric {name}: no two of the runs that are compared have such a metric.")
        return [name for name, metric in known.items() if not asked or name in asked or metric in asked]

    def compare_with(
        self, other: ComparedTasks, metrics: Sequence[str], confidence: float, resamples: int | None
    ) -> Comparison:
        """Compares another run with this one, document by document."""
        tasks = [name for name in self.results.tasks if name in other.results.tasks]
        if not tasks:
            raise RunError(f"{self.folder} and {other.folder} have no task in common.")
        only = [
            [name for name in run.results.tasks if name not in tasks]
            + [f"{task}: {key}" for task in tasks for key in run._metrics(task) if key not in without._metrics(task)]
            for run, without in ((self, other), (other, self))
        ]
        remarks = [
            f"only {run.folder} has {', '.join(names)}" for run, names in zip((self, other), only, strict=True) if names
        ]
        facts = {"tasks_only_in_first": only[0], "tasks_only_in_run": only[1]}
        comparison = Comparison(first=self, run=other, differences={}, remarks=remarks, facts=facts)
        for task in tasks:
            for key in self._metrics(task):
                if f"{task}/{key}" in metrics and key in other._metrics(task):
                    self._compare_metric(other, comparison, task, key, confidence, resamples)
        return comparison

    def _metrics(self, task: str) -> dict[str, TaskMetric]:
        return {metric.key: metric for metric in self.results.tasks[task].metrics}

    def _compare_metric(
        self,
        other: ComparedTasks,
        comparison: Comparison,
        task: str,
        key: str,
        confidence: float,
        resamples: int | None,
    ) -> None:
        """Adds the difference of a metric of a task that both runs have to a comparison."""
        runs, name = (self, other), f"{task}/{key}"
        before, after = (run.values(task)[key] for run in runs)
        both = [document for document in before if document in after]
        if before and after and not both:
            raise RunError(
                f"{self.folder} and {other.folder} have no document of the task {task} in common: its data or its "
                "--limit differ."
            )
        metrics = [run._metrics(task)[key] for run in runs]
        forms = [
            find_form(list(values.values()), metric.value, metric.aggregation)
            for values, metric in zip((before, after), metrics, strict=True)
        ]
        if both and forms[0] is not None and forms[0] is forms[1]:
            paired = [(before[document], after[document]) for document in both]
            groups = self._groups_in_common(other, task, both)
            comparison.differences[name], test = _difference(paired, forms[0], confidence, resamples, groups)
            if test is not None:
                comparison.tests[name] = test
        else:
            first, second = (metric.value for metric in metrics)
            is_same_data = len(both) == max(len(before), len(after))
            value = second - first if is_same_data and first is not None and second is not None else None
            reason = NO_MEAN if both else _ONE_HAS
            comparison.differences[name] = PairedDifference(value, Interval(confidence=confidence, reason=reason), None)
        comparison.samples[name] = (len(both), len(before) + len(after) - 2 * len(both))

    def _groups_in_common(self, other: ComparedTasks, task: str, documents: Sequence[DocumentKey]) -> np.ndarray | None:
        """Returns the group of each document, int64 of shape [n]; None without groups."""
        runs = (self, other)
        groups = [run.results.dataset.groups if run.results.dataset else None for run in runs]
        numbers: list[np.ndarray | None] = [None, None]
        if all(groups):
            of_runs = [run.groups(task) for run in runs]
            numbers = [renumbered(np.asarray([of_run[key] for key in documents])) for of_run in of_runs]
        require_same_groups([run.folder for run in runs], groups, numbers)
        return numbers[0]

    def changes_since(self, first: ComparedTasks) -> Iterator[Change]:
        """Yields the documents whose first metric of 0 or 1 differs between the runs."""
        for task in (name for name in first.results.tasks if name in self.results.tasks):
            common = [metric for metric in first.shares(task) if metric.key in self._metrics(task)]
            for metric in common[:1]:
                yield from self._changes_of_metric(first, task, metric)

    def _changes_of_metric(self, first: ComparedTasks, task: str, metric: TaskMetric) -> Iterator[Change]:
        before, after = (run.values(task)[metric.key] for run in (first, self))
        changed = {document for document in before.keys() & after.keys() if before[document] != after[document]}
        answers = {document: sample for document, sample in self._samples(task, metric) if document in changed}
        for document, sample in first._samples(task, metric):
            if document in changed:
                target, answer_before, _ = sample.answer(metric.metric, with_texts=True)
                _, answer_after, _ = answers[document].answer(metric.metric, with_texts=True)
                kind = "gained" if after[document] else "lost"
                target, answer_before, answer_after = map(csv_text, (target, answer_before, answer_after))
                yield Change(f"{task} #{sample.number}", target, answer_before, answer_after, kind)

    def _samples(self, task: str, metric: TaskMetric) -> Iterator[tuple[DocumentKey, Sample]]:
        return ((document, sample) for document, sample in self.samples(task) if sample.filter == metric.filter)

    @classmethod
    def describe_runs(cls, runs: Sequence[ComparedTasks]) -> str:
        """Describes the documents on which runs are compared."""
        dataset = runs[0].results.dataset
        return f"texts after the rows of {dataset.source}" if dataset else "tasks of the lm-evaluation-harness"

    def describe(self) -> dict[str, Any]:
        """Returns the problem type."""
        return {"problem_type": self.results.problem_type}


def _difference(
    values: Sequence[tuple[Any, Any]], form: Form, confidence: float, resamples: int | None, groups: np.ndarray | None
) -> tuple[PairedDifference, McNemar | None]:
    """Compares both values of each document.

    Where they are 0 or 1, and documents are not grouped, this is done by McNemar's test, else by the bootstrap.
    """
    before, after = ([pair[run] for pair in values] for run in range(2))
    if groups is None and is_share([*before, *after]):
        return difference_of_shares(np.asarray(before, dtype=bool), np.asarray(after, dtype=bool), confidence)
    pair = document_statistic(before, form, groups), document_statistic(after, form, groups)
    return differences_of(pair, confidence=confidence, resamples=resamples)[VALUE], None
