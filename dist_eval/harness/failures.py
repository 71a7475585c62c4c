"""Metrics that have no value because the code that computes them failed: the other ones, and the run, go on."""

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
"""By task, and by the harness' name of a metric (METRIC,FILTER), why it has no value."""

_Values = Mapping[tuple[str, str], list[Any]]  # of documents, by metric and filter
# After these a new start, which sends nothing again, may have all values
_MENDABLE = (OSError, MemoryError, ImportError)
_NOTHING = "N/A"  # the harness' word for a standard error that is not there


@contextmanager
def collecting_failures(
    tasks: Mapping[str, Any], samples: Mapping[str, Sequence[int]], undefined: Undefined
) -> Iterator[None]:
    """Has the harness go on within this context where filters, metrics or aggregations of a task fail on answers.

    Args:
        tasks: the tasks by name.
        samples: numbers of the documents that are evaluated, of tasks that are not evaluated as a whole.
        undefined: takes why metrics have no value.
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
    """Calls a task's filters, and computes its documents' metrics, up to the first failure.

    Attributes:
        reason: why none of the task's metrics has a value; empty if all documents have theirs.
    """

    def __init__(self, task: Any, samples: Sequence[int] | None) -> None:
        self._task, self._samples = task, samples
        self._apply_filters, self._process_results = task.apply_filters, task.process_results
        self._calls = 0
        self.reason = ""

    def apply_filters(self) -> None:
        try:
            self._apply_filters()
        except Exception as error:  # of the task's own code
            self.reason = f"its filters failed: {_described(error)}"
            for instance in self._task.instances:  # so that all answers are written as they are
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
    """Returns what the harness aggregates of each metric, and of how many documents; NaN of those that fail."""
    try:
        return original(values, *options)
    except Exception:  # of which one?
        pass
    metrics: dict[str, Any] = {}
    for (metric, name), of_documents in values.items():
        for how in (options, (0,)):  # the second time without a standard error, which may be what fails
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
    """Aggregates over tasks; where one of them has something else than a number, a group has no value."""
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
    """Returns what an error says; raises it again if a new start may do better."""
    if isinstance(error, _MENDABLE) or isinstance(error.__cause__, _MENDABLE):
        raise error
    text = one_line(error) if isinstance(error, EvaluationError) else error_sentence(error)
    return text.removesuffix(".")
