"""Compares runs on tasks of the lm-evaluation-harness, or on prompts, document by document."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import and_
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
from dist_eval.statistics import Interval, PairedDifference
from dist_eval.statistics.documents import NO_MEAN, VALUE, Form, document_interval, document_statistic, find_form
from dist_eval.statistics.paired import difference_of_shares, differences_of
from dist_eval.tables import csv_text, format_count

_ONE_HAS = "only one of the runs has values of documents"
_OTHER_DOCUMENTS = "it is not a function of a mean over documents, and is of more documents than are compared"


@dataclass(frozen=True)
class ComparedTasks(TaskRun, ComparedRun):
    """A complete run on tasks, or on prompts, read back from its folder."""

    KIND = "tasks of the lm-evaluation-harness, or generated texts"

    # by TASK/METRIC, the documents that are not compared, because not all of the runs have them
    left_out: Mapping[str, Set[DocumentKey]] = field(default_factory=dict, repr=False)

    @classmethod
    def load_metrics(cls, given: Sequence[str], runs: Sequence[ComparedTasks]) -> tuple[list[str], list[Any]]:
        """Returns names of metrics, and those of texts that had to be loaded; metrics of tasks are the harness' own."""
        if runs[0].results.dataset is None:
            return list(given), []
        runs = _with_one_name(runs)
        specs = [name for name in given if not all(run.has(name) for run in runs)]
        wanted = [name_of_spec(spec) for spec in specs]
        loaded = [metric for metric in load_text_metrics(specs) if metric.name in wanted]
        return [name_of_spec(name) if name in specs else name for name in given], loaded

    @classmethod
    def prepare(cls, runs: Sequence[ComparedTasks], custom_metrics: Sequence[TextMetric]) -> list[ComparedTasks]:
        """Gives runs on prompts a common name of their task, computes metrics from their texts, and restricts runs.

        What remains are the documents that all runs with a metric have. Raises `RunError` if prompts are of other data.
        """
        if runs[0].results.dataset:
            _require_same_rows([run for run in runs if run.results.dataset])
            runs = [run._with_metrics(custom_metrics) for run in _with_one_name(runs)]
        return _on_common_documents(runs)

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

    def restricted(self, common: Mapping[str, Set[DocumentKey]], sampling_fraction: float) -> ComparedTasks:
        """Restricts metrics, named TASK/METRIC, to some of their documents, and computes them and their intervals."""
        values = {task: dict(self.values(task)) for task in self.results.tasks}
        left_out = {
            f"{task}/{key}": own.keys() - common.get(f"{task}/{key}", own.keys())
            for task, of_task in values.items()
            for key, own in of_task.items()
        }
        if not any(left_out.values()):
            return self
        tasks, dataset = {}, self.results.dataset
        for task, results in self.results.tasks.items():
            groups, shares = self.groups(task) if dataset and dataset.groups else {}, self.shares(task)
            revised = dict(self._metrics(task))
            for key, metric in revised.items():
                if dropped := left_out[f"{task}/{key}"]:
                    form = find_form(list(values[task][key].values()), metric.value, metric.aggregation)
                    values[task][key] = kept = {
                        document: value for document, value in values[task][key].items() if document not in dropped
                    }
                    revised[key] = _over_documents(
                        metric,
                        list(kept.values()),
                        form,
                        confidence=self.confidence,
                        is_share=metric in shares,
                        groups=np.asarray([groups[document] for document in kept]) if groups else None,
                        sampling_fraction=0.0 if groups else sampling_fraction,
                    )
            tasks[task] = results.model_copy(update={"metrics": [*revised.values()]})
        # of groups there are only the harness' figures, of all documents
        restricted = self.results.model_copy(update={"tasks": tasks, "groups": {}})
        return replace(self, results=restricted, left_out=left_out, _values=values)

    def _references(self) -> dict[int, list[str]]:
        """Returns the references of a run on prompts, by row."""
        [file] = self.results.files.samples.values()
        texts = read_texts(self.folder / file)
        return dict(zip(texts.index.tolist(), texts.references, strict=True))

    def _with_task_named(self, name: str) -> ComparedTasks:
        """Names the single task of a run on prompts, whose name is the dataset's."""
        [task] = self.results.tasks.values()
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
                f"{self.folder} and {other.folder} have no document of the task {task} in common: their data or their "
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
            are_shares = all(metric in run.shares(task) for metric, run in zip(metrics, runs, strict=True))
            if are_shares and groups is None:
                first_right, second_right = np.asarray(paired, dtype=bool).T
                found = difference_of_shares(first_right, second_right, confidence)
                comparison.differences[name], comparison.tests[name] = found
            else:
                comparison.differences[name] = _difference(paired, forms[0], confidence, resamples, groups)
        else:
            first, second = (metric.value for metric in metrics)
            is_same_data = len(both) == max(len(before), len(after))
            value = second - first if is_same_data and first is not None and second is not None else None
            reason = NO_MEAN if both else _ONE_HAS
            comparison.differences[name] = PairedDifference(value, Interval(confidence=confidence, reason=reason), None)
        missing = {*self.left_out.get(name, ()), *other.left_out.get(name, ())}
        comparison.samples[name] = (len(both), len(missing) + len(before) + len(after) - 2 * len(both))

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
        what = f"texts after the rows of {dataset.source}" if dataset else "tasks of the lm-evaluation-harness"
        is_part = any(documents for run in runs for documents in run.left_out.values())
        return f"{what}{', on the documents that all of the runs have' if is_part else ''}"

    def describe(self) -> dict[str, Any]:
        """Returns the problem type."""
        return {"problem_type": self.results.problem_type}


def _difference(
    values: Sequence[tuple[Any, Any]], form: Form, confidence: float, resamples: int | None, groups: np.ndarray | None
) -> PairedDifference:
    """Compares both values of each document by the bootstrap."""
    before, after = (document_statistic([pair[run] for pair in values], form, groups) for run in range(2))
    return differences_of((before, after), confidence=confidence, resamples=resamples)[VALUE]


def _over_documents(
    metric: TaskMetric, values: Sequence[Any], form: Form | None, *, confidence: float, **options: Any
) -> TaskMetric:
    """Returns a metric over other documents; the options are those of `document_interval`."""
    value, interval = None, Interval(confidence=confidence, reason=_OTHER_DOCUMENTS)
    if form is not None:
        value = document_statistic(values, form).observed()[VALUE]
        interval = document_interval(values, value, metric.aggregation, confidence, **options)
    return metric.model_copy(update={"value": value, "documents": len(values), "interval": interval})


def _with_one_name(runs: Sequence[ComparedTasks]) -> list[ComparedTasks]:
    """Names the single task of all runs on prompts as in the first run, which is one."""
    [name] = runs[0].results.tasks
    return [run._with_task_named(name) if run.results.dataset else run for run in runs]


def _require_same_rows(runs: Sequence[ComparedTasks]) -> None:
    """Requires that runs on prompts have the same texts, and the same references of rows that they have in common."""
    first, *others = runs
    references = first._references()
    for run in others:
        pair = f"{first.folder} and {run.folder} cannot be compared"
        own, theirs = first.results.dataset, run.results.dataset
        if own and theirs and not own.has_texts_of(theirs):
            sources = f"{own.source} and {theirs.source}"
            raise RunError(f"{pair}: their data differ, {sources}. Evaluate both on the same rows.")
        other = run._references()
        if differing := [row for row in references if other.get(row, references[row]) != references[row]]:
            raise RunError(
                f"{pair}: {format_count(len(differing), 'row')}, such as number {differing[0]}, "
                f"{'has' if len(differing) == 1 else 'have'} different references. Evaluate both on the same rows."
            )


def _on_common_documents(runs: Sequence[ComparedTasks]) -> list[ComparedTasks]:
    """Restricts each metric to the documents that all runs with this metric have, if some have only a part of them."""
    common: dict[str, Set[DocumentKey]] = {}
    for task in dict.fromkeys(task for run in runs for task in run.results.tasks):
        having = [run for run in runs if task in run.results.tasks]
        for key in dict.fromkeys(key for run in having for key in run._metrics(task)):
            of_runs = [own for run in having if (own := run.values(task).get(key, {}).keys())]
            documents: Set[DocumentKey] = functools.reduce(and_, of_runs) if len(of_runs) > 1 else set()
            if documents:
                common[f"{task}/{key}"] = documents
    selections = [run.results.dataset.selection for run in runs if run.results.dataset]
    drawn = [selection for selection in selections if selection]
    fraction = 0.0
    if drawn and all(selection.is_random for selection in drawn):
        fraction = max(map(len, common.values()), default=0) / drawn[0].population
    return [run.restricted(common, fraction) for run in runs]
