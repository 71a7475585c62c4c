"""Synthetic runs to compare, in the evaluator's file formats, with the differences that a test needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from samples import FACTS, opened, sections

from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.custom_metrics import CustomMetric, MetricInputs, custom_results
from dist_eval.metrics.predictions import Predictions
from dist_eval.petals.base_model.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from dist_eval.statistics import class_intervals, metric_intervals
from dist_eval.statistics.metrics import statistics_of_functions

NAMES = ["neg", "neutral", "pos"]


def predictions(
    skill: float, seed: int = 0, examples: int = 300, outputs: int = 3, problem: Problem = SINGLE_LABEL
) -> Predictions:
    """A model on the same examples as all others; less skilled ones make more errors."""
    truth, generator = np.random.default_rng(99), np.random.default_rng(seed)
    label: np.ndarray = truth.integers(outputs, size=examples)
    logits = generator.normal(size=(examples, outputs))
    if problem is SINGLE_LABEL:
        logits[np.arange(examples), label] += skill
    elif problem is MULTI_LABEL:
        label = truth.random((examples, outputs)) < 0.4
        logits += skill * (2.0 * label - 1.0)
    else:
        label = truth.normal(size=(examples, outputs))
        logits = label + logits / skill
    return Predictions.from_logits(np.arange(examples), label, logits, problem)


def run_of(
    folder: Path, found: Predictions, names: list[str] = NAMES, groups: np.ndarray | None = None, column: str = "doc",
    custom: Sequence[CustomMetric] = (), **data: Any,
) -> Path:  # fmt: skip
    """Writes a run's folder as the evaluator does, with the figures of functions of the caller's own."""
    found = found.in_groups(groups)
    metrics = compute_metrics(found, names)
    own = custom_results(custom, MetricInputs.of(found)).values
    metrics = replace(metrics, values={**metrics.values, **own}, custom=list(own))
    extra_statistics = statistics_of_functions(custom, found)
    whole = metric_intervals(found, metrics, resamples=99, extra_statistics=extra_statistics)
    rows = [
        {**dict(row), "intervals": of_class}
        for row, of_class in zip(metrics.per_class, class_intervals(found, metrics, whole), strict=True)
    ]
    of_groups = groups is not None and {"column": column, "count": len(np.unique(groups)), "largest": 10}
    run = opened(folder)
    changes: dict[str, Any] = {"intervals": whole, "per_class": rows, "groups": of_groups or None}
    changes["data"] = {**FACTS["data"], "text_digest": "texts", **data}
    of_classes = dict.fromkeys(("calibration", "confident_mistakes")) if found.problem is REGRESSION else {}
    run.complete(found, sections(metrics, **changes, **of_classes))
    run.close()
    return folder
