"""The harness' metrics as records: its unchanged values, with intervals from its samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dist_eval.results.tasks import GroupMetric, GroupResults, TaskMetric, TaskResults
from dist_eval.statistics.documents import document_interval


def task_results(
    results: Mapping[str, Any], aggregations: Mapping[str, Mapping[str, str | None]], confidence: float
) -> dict[str, TaskResults]:
    """Returns the tasks of the harness' results (see `LoadedTasks.aggregations`)."""
    found = {}
    for name, samples in results["samples"].items():
        direction = results["higher_is_better"].get(name, {})
        hashes = {sample["doc_id"]: sample["doc_hash"] for sample in samples}
        metrics = []
        for metric, filter_name, value in read_metrics(results["results"][name]):
            values = [sample[metric] for sample in samples if sample["filter"] == filter_name and metric in sample]
            aggregation = aggregations[name].get(metric)
            # the harness does not say which metrics are shares, such as accuracies
            is_share = aggregation == "mean" and all(value in (0, 1) for value in values)
            interval = document_interval(values, value, aggregation, confidence, is_share=is_share)
            metrics.append(
                TaskMetric(
                    metric=metric,
                    filter=filter_name,
                    value=value,
                    documents=len(values),
                    aggregation=aggregation,
                    interval=interval,
                    higher_is_better=direction.get(metric),
                )
            )
        found[name] = TaskResults(
            version=str(results["versions"].get(name)),
            num_fewshot=results["n-shot"].get(name) or 0,
            documents=len(hashes),
            documents_digest=hashlib.sha256(" ".join(sorted(hashes.values())).encode()).hexdigest(),
            metrics=metrics,
        )
    return found


def group_results(results: Mapping[str, Any]) -> dict[str, GroupResults]:
    """Returns the groups that the harness aggregates over."""
    return {
        name: GroupResults(
            tasks=list(results["group_subtasks"].get(name, [])),
            metrics=[GroupMetric(metric=m, filter=f, value=value) for m, f, value in read_metrics(values)],
        )
        for name, values in results.get("groups", {}).items()
    }


def read_metrics(values: Mapping[str, Any]) -> Sequence[tuple[str, str, float | None]]:
    """Returns metric, filter and value of the harness' values, whose names are "METRIC,FILTER"."""
    found = []
    for key, value in values.items():
        metric, comma, filter_name = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        found.append((metric, filter_name, number if math.isfinite(number) else None))
    return found
