"""Pairs of runs on tasks of the lm-evaluation-harness side by side: paired tests, and the documents that changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dist_eval.compare.tasks import MetricComparison, TaskComparison, adjusted, compare_two, task_rows
from dist_eval.errors import EvaluationError
from dist_eval.report.layout import Contents
from dist_eval.report.pairs import Change, Pair, Shown, headline, reason_words, side_by_side
from dist_eval.report.tasks_page import answer_of, context_of, metric_name
from dist_eval.runs.task_samples import TaskRun
from dist_eval.tables import Footnotes


def compare_on_tasks(pairs: Sequence[tuple[Shown, Shown]], contents: Contents, most: int) -> list[Pair]:
    """Compares the runs of each pair, document by document; the tests of all of them are one family."""
    runs = {one.folder: TaskRun.load(one.folder) for pair in pairs for one in pair}
    found, compared = [], {}
    for number, (first, other) in enumerate(pairs):
        pair = side_by_side(first, other)
        try:
            compared[number] = compare_two(runs[first.folder], runs[other.folder])
        except EvaluationError as error:
            pair = replace(pair, reason=reason_words(error, pair.runs))
        found.append(pair)
    for number, one in zip(compared, adjusted(list(compared.values())), strict=True):
        both = runs[one.first], runs[one.run]
        found[number] = _described(found[number], one, both, contents, most)
    return found


def _described(pair: Pair, one: TaskComparison, runs: tuple[TaskRun, TaskRun], contents: Contents, most: int) -> Pair:
    if not one.metrics:
        return replace(pair, reason="The tasks that both have have no metric in common.")
    notes, main = Footnotes(), one.metrics[0]
    rows = task_rows(one, notes)
    words, is_significant = headline(f"{main.task} {metric_name(main)}", main.difference, main.corrected)
    lines = [
        f"Only {shown.name} has {', '.join(tasks)}."
        for shown, tasks in ((pair.first, one.only_first), (pair.other, one.only_second))
        if tasks
    ]
    compared = [metric for metric in one.metrics if metric.test is not None]
    first_of_tasks = {metric.task: metric for metric in reversed(compared)}
    shares = [metric for metric in compared if metric is first_of_tasks[metric.task]]
    changes = itertools.chain.from_iterable(_changes(*runs, metric, contents) for metric in shares)
    names, confidence = (pair.first.name, pair.other.name), main.difference.interval.confidence
    return replace(
        pair,
        headline=words,
        is_significant=is_significant,
        lines=lines,
        heads=["task", "metric", *names, f"difference, {100 * confidence:g} % interval", "p", "p (Holm)", "documents"],
        rows=rows,
        notes=notes.lines(),
        changes=list(itertools.islice(changes, most)),
        changed=sum(one.test.only_first + one.test.only_second for one in shares if one.test is not None),
    )


def _changes(first: TaskRun, other: TaskRun, metric: MetricComparison, contents: Contents) -> Iterator[Change]:
    """Yields the documents of a task that only one of the runs gets right by a metric."""
    before, after = (run.values(metric.task)[metric.metric, metric.filter] for run in (first, other))
    changed = {key for key in before.keys() & after.keys() if before[key] != after[key]}
    answers = {key: sample for key, sample in _samples(other, metric) if key in changed}
    for key, sample in _samples(first, metric):
        if key in changed:
            target, old, _ = answer_of(sample, metric.metric, contents)
            _, new, _ = answer_of(answers[key], metric.metric, contents)
            what = "gained" if after[key] else "lost"
            position = f"{metric.task} #{sample['doc_id']}"
            yield Change(position, target, old, new, what, text=context_of(sample, contents))


def _samples(run: TaskRun, metric: MetricComparison) -> Iterator[tuple[Any, dict[str, Any]]]:
    return ((key, sample) for key, sample in run.samples(metric.task) if sample["filter"] == metric.filter)
