"""Metrics without a value because their code failed; the other metrics and the run continue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from lm_eval import evaluator_utils

from dist_eval.errors import EvaluationError, one_line
from dist_eval.harness.metrics import read_metrics
from dist_eval.metrics.custom_metrics import error_sentence
from dist_eval.process.patching import patched

Undefined = dict[str, dict[str, str]]
"""Why metrics have no value, by task and the harness' name of the metric (METRIC,FILTER)."""

_Values = Mapping[tuple[str, str], list[Any]]  # of documents, by metric and filter
# errors that may not recur at a new start, which sends nothing again
_RECOVERABLE = (OSError, MemoryError, ImportError)
_NOTHING = "N/A"  # the harness' word for a missing standard error


@contextmanager
def collecting_failures(
    tasks: Mapping[str, Any], samples: Mapping[str, Sequence[int]], undefined: Undefined
) -> Iterator[None]:
    """Lets the harness continue if filters, metrics or aggregations of a task fail on answers.

    `samples` has the numbers of the evaluated documents, for tasks that are evaluated in part. `undefined` receives the
    reasons why metrics have no value.
    """
    original = evaluator_utils._compute_task_aggregations
    with ExitStack() as stack:
        guards = {name: _DocumentGuard(task, samples.get(name)) for name, task in tasks.items()}
        for name, task in tasks.items():
            for method in ("apply_filters", "process_results"):
                setattr(task, method, getattr(guards[name], method))
                stack.callback(delattr, task, method)

        def aggregate(task: Any, values: _Values, *options: Any) -> tuple[dict[str, Any], int]:
            found = undefined.setdefault(task.task_name, {})
            reason = guards[task.task_name].reason
            if not reason:
                return _aggregate(partial(original, task), values, found, *options)
            metrics = [f"{metric},{name}" for metric in task.aggregation() for name in _filters_of(task)]
            found.update(dict.fromkeys(metrics, reason))
            return dict.fromkeys(metrics, math.nan), len({instance.doc_id for instance in task.instances})

        stack.enter_context(patched(evaluator_utils, "_compute_task_aggregations", aggregate))
        of_groups = partial(_aggregate_groups, evaluator_utils.aggregate_groups)
        stack.enter_context(patched(evaluator_utils, "aggregate_groups", of_groups))
        yield


class _DocumentGuard:
    """Applies a task's filters and computes its documents' metrics, up to the first failure."""

    def __init__(self, task: Any, samples: Sequence[int] | None) -> None:
        self._task, self._samples = task, samples
        self._apply_filters, self._process_results = task.apply_filters, task.process_results
        self._calls = 0
        self.reason = ""  # why none of the task's metrics has a value; empty if all documents have theirs

    def apply_filters(self) -> None:
        try:
            self._apply_filters()
        except Exception as error:  # of the task's own code
            self.reason = f"its filters failed: {_described(error)}"
            for instance in self._task.instances:  # so that the answers are written unfiltered
                instance.filtered_resps = dict.fromkeys(_filters_of(self._task), instance.resps)

    def process_results(self, doc: Any, results: Any) -> Any:
        place, self._calls = self._calls, self._calls + 1
        if self.reason:
            return {}
        try:
            return self._process_results(doc, results)
        except Exception as error:  # of the task's own code
            place %= len({instance.doc_id for instance in self._task.instances})  # once for each filter
            number = self._samples[place] if self._samples else place
            self.reason = f"it failed on document {number}: {_described(error)}"
            return {}


def _aggregate(
    original: Callable[..., tuple[dict[str, Any], int]], values: _Values, undefined: dict[str, str], *options: Any
) -> tuple[dict[str, Any], int]:
    """Returns the harness' aggregate of each metric (NaN for those that fail), and the number of documents."""
    try:
        return original(values, *options)
    except Exception:  # below, each metric separately
        pass
    metrics: dict[str, Any] = {}
    for (metric, name), of_documents in values.items():
        for how in (options, (0,)):  # the second time without the standard error, whose computation may fail
            try:
                found, _ = original({(metric, name): of_documents}, *how)
                break
            except Exception as error:  # of the task's own code, or of the harness'
                reason = f"its aggregation failed: {_described(error)}"
        else:
            undefined[f"{metric},{name}"] = reason
            found = {f"{metric},{name}": math.nan, f"{metric}_stderr,{name}": _NOTHING}
        metrics |= found
    return metrics, max(map(len, values.values()), default=0)


def _aggregate_groups(original: Callable[[Any], Any], results: Any) -> Any:
    """Aggregates over tasks; if a task's value is not a number, the group has no value."""
    try:
        return original(results)
    except Exception:
        for metrics in results.metrics.values():
            known = {f"{metric},{name}" for metric, name, _ in read_metrics(metrics)}
            others = (key for key in metrics if "," in key and "_stderr," not in key and key not in known)
            metrics.update(dict.fromkeys(others, math.nan))
        return original(results)


def _filters_of(task: Any) -> list[str]:
    return [each.name for each in getattr(task, "_filters", ())]


def _described(error: Exception) -> str:
    """Describes an error; raises it again if a new start may succeed."""
    if isinstance(error, _RECOVERABLE) or isinstance(error.__cause__, _RECOVERABLE):
        raise error
    text = one_line(error) if isinstance(error, EvaluationError) else error_sentence(error)
    return text.removesuffix(".")
