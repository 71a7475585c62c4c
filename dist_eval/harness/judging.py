"""Which documents of the harness' tasks are right, told as soon as all requests of a document are answered."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from dist_eval.harness.language_model import HarnessModel
from dist_eval.harness.task_files import CheckedTask
from dist_eval.results.harness import GroupMetric

_SHARES = ("acc", "exact_match")
_OF_HARNESS = "lm_eval.api.metrics"


class DocumentJudge:
    """Computes a metric of documents by the harness' own code, on the leader; a `Judge` of positions of requests.

    That is `acc` or `exact_match`, by the first filter, of tasks that leave their metrics to the harness. Code of a
    task's own is not called before the end: it may take long, or count its calls.
    """

    def __init__(self, tasks: Mapping[str, Any], model: HarnessModel) -> None:
        self._tasks, self._model = tasks, model
        self._metrics = {name: metric for name, task in tasks.items() if (metric := _share_of(task))}
        self._held: dict[int, dict[int, np.void]] = {}  # by document, answers by position

    @cached_property
    def _documents(self) -> list[list[tuple[Instance, int]]]:
        by_document = itertools.groupby(self._model.requests, key=lambda own: (own[0].task_name, own[0].doc_id))
        return [list(requests) for _, requests in by_document]

    @cached_property
    def _starts(self) -> np.ndarray:
        """The position of each document's first answer, and the end of all."""
        sizes = [sum(count for _, count in requests) for requests in self._documents]
        return np.cumsum([0, *sizes])

    def __call__(self, positions: np.ndarray, answers: np.ndarray) -> dict[str, list[bool]]:
        """Returns which documents are right, of those that have all answers now; by task and metric."""
        found: dict[str, list[bool]] = {}
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        for number, position, answer in zip(numbers.tolist(), positions.tolist(), answers, strict=True):
            name = self._documents[number][0][0].task_name
            if name not in self._metrics:
                continue
            held = self._held.setdefault(number, {})
            held[position] = answer.copy()  # else it keeps all answers of its batch
            if len(held) == self._starts[number + 1] - self._starts[number]:
                del self._held[number]
                self._judge(self._documents[number], np.array([held[place] for place in sorted(held)]), found)
        return found

    def _judge(self, document: list[tuple[Instance, int]], answers: np.ndarray, found: dict[str, list[bool]]) -> None:
        instance, _ = document[0]
        task, metric = self._tasks[instance.task_name], self._metrics[instance.task_name]
        by_filter = task._filters[0]
        try:
            answered = self._answered(document, answers)
            by_filter.apply(answered)
            responses = [request.filtered_resps[by_filter.name] for request in answered]
            value = CheckedTask.process_results(task, instance.doc, responses)[metric.metric]
        except Exception:  # the end of the run will say what is wrong
            del self._metrics[instance.task_name]
        else:
            found.setdefault(f"{instance.task_name}/{metric.key}", []).append(bool(value))

    def _answered(self, document: list[tuple[Instance, int]], answers: np.ndarray) -> list[Instance]:
        """Returns copies of requests with their responses, in the harness' order."""
        answered, start = [], 0
        for instance, count in document:
            request = copy.copy(instance)
            responses = self._model.respond(instance, answers[start : start + count])
            request.resps = list(itertools.islice(itertools.cycle(responses), instance.repeats or 1))
            request.filtered_resps = {}
            answered.append(request)
            start += count
        return sorted(answered, key=lambda request: request.idx)


def _share_of(task: Any) -> GroupMetric | None:
    """Returns the metric that is 1 for documents that are right, and else 0; None if the task has none of this kind."""
    if type(task) is not CheckedTask:  # a class of somebody's own
        return None
    functions = [*task._metric_fn_list.values(), *task.aggregation().values()]
    if task.config.process_results or any(getattr(each, "__module__", "") != _OF_HARNESS for each in functions):
        return None
    shares = [name for name, function in task.aggregation().items() if name in _SHARES and function.__name__ == "mean"]
    return GroupMetric(metric=shares[0], filter=task._filters[0].name, value=None) if shares else None
