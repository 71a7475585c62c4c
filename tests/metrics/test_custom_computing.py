"""Custom metrics: the same values for any sharding of the batches, and all failure modes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sample_metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from dist_eval.data.plan import Plan, plan_batches, shard_batches
from dist_eval.data.problem_types import SINGLE_LABEL
from dist_eval.metrics.custom_computing import Reduced, custom_results, reduce_batches
from dist_eval.metrics.custom_metrics import CustomMetric, Inputs
from dist_eval.metrics.metric_loading import load_metrics
from dist_eval.metrics.predictions import Predictions

CLASSES = 3
REDUCED = ("Hits", "MeanTop", "Surest", "LeastSure", "LogLoss")


def metrics_named(*names: str) -> list[CustomMetric]:
    return load_metrics([f"sample_metrics:{name}" for name in names], SINGLE_LABEL, CLASSES, built_in=["loss"])


def some_predictions(rows: int, seed: int = 0) -> Predictions:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(rows, CLASSES))
    return Predictions.from_logits(np.arange(rows), generator.integers(0, CLASSES, rows), logits)


def some_plan(rows: int, seed: int = 0) -> Plan:
    return plan_batches(np.random.default_rng(seed).integers(1, 9, rows), token_budget=24)


def results_on(
    ranks: int, metrics: list[CustomMetric], predictions: Predictions, plan: Plan, kept: np.ndarray
) -> dict[str, Any]:
    """Lets ranks with a share each meet in this process."""
    shares, every = [], []
    for rank in range(ranks):
        batches = shard_batches(len(plan), rank=rank, world_size=ranks)[::-1]
        rows = np.sort(np.concatenate([plan.batch(batch) for batch in batches] or [np.empty(0, dtype=np.int64)]))
        rows = rows[kept[rows]]
        shares.append((batches, rows, Inputs.of(predictions).rows(rows)))
    for batches, rows, inputs in shares:
        reduce_batches(metrics, inputs.rows, rows, plan, batches, lambda found: every.append(found) or [found])
    batches, rows, inputs = shares[0]
    combined = reduce_batches(metrics, inputs.rows, rows, plan, batches, lambda found: every)
    results = custom_results(metrics, Inputs.of(predictions).rows(np.flatnonzero(kept)), combined)
    return {"values": results.values, "undefined": results.undefined}


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 60), ranks=st.integers(1, 6), seed=st.integers(0, 99), failed=st.integers(0, 5))
def test_results_do_not_depend_on_the_number_of_ranks_to_the_last_bit(
    rows: int, ranks: int, seed: int, failed: int
) -> None:
    metrics, predictions, plan = metrics_named(*REDUCED, "order"), some_predictions(rows, seed), some_plan(rows, seed)
    kept = np.ones(rows, dtype=bool)
    kept[np.random.default_rng(seed).integers(0, rows, min(failed, rows - 1))] = False
    alone = results_on(1, metrics, predictions, plan, kept)
    assert json.dumps(results_on(ranks, metrics, predictions, plan, kept)) == json.dumps(alone)
    labels, top = predictions.label[kept], predictions.probabilities[kept].max(axis=1)
    assert alone["undefined"] == {}
    assert alone["values"] == pytest.approx(
        {
            "Hits": (predictions.prediction[kept] == labels).sum(),
            "MeanTop": top.mean(),
            "Surest/largest": top.max(),
            "Surest/label": labels.max(),
            "LeastSure": top.min(),
            "LogLoss": log_loss(labels, predictions.probabilities[kept], labels=range(CLASSES)),
            "order/labels": (labels * np.arange(len(labels))).sum(),
            "order/top": (top * np.arange(len(labels))).sum(),
        },
        rel=1e-12,
    )


def test_values_of_many_batches_travel_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, predictions, plan = metrics_named(*REDUCED), some_predictions(200), some_plan(200)
    inputs, index, batches = Inputs.of(predictions), predictions.index, np.arange(len(plan))
    rounds: list[int] = []

    def gather(found: Any) -> list[Any]:
        rounds.append(len(found))
        return [found]

    whole = custom_results(metrics, inputs, reduce_batches(metrics, inputs.rows, index, plan, batches))
    monkeypatch.setattr("dist_eval.metrics.custom_computing._BATCHES_IN_A_ROUND", 7)
    cut = custom_results(metrics, inputs, reduce_batches(metrics, inputs.rows, index, plan, batches, gather))
    assert cut == whole
    assert len(rounds) == -(-len(plan) // 7)
    assert max(rounds) == 7 * len(metrics)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_metric_that_fails_on_real_data_is_undefined_and_all_else_stands(ranks: int) -> None:
    metrics = metrics_named("fails_on_many", "FailsOnOneBatch", "nan", "Hits")
    predictions, plan = some_predictions(40), plan_batches(np.full(40, 5), token_budget=15)
    results = results_on(ranks, metrics, predictions, plan, np.ones(40, dtype=bool))
    assert results["values"] == {
        "fails_on_many": None,
        "FailsOnOneBatch": None,
        "nan": None,
        "Hits": (predictions.prediction == predictions.label).sum(),
    }
    assert results["undefined"] == {
        "fails_on_many": "the metric raised RuntimeError: too many for me.",
        "FailsOnOneBatch": "the metric raised RuntimeError: one is not enough.",
        "nan": "the metric gave nan",
    }


@pytest.mark.parametrize(
    "parts",
    [
        ({"": np.zeros(2)}, {"": np.zeros(3)}),
        ({"a": np.zeros(2)}, {"b": np.zeros(2)}),
        ({"": np.zeros(1)}, {"": np.float64(0)}),
    ],
)
@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min"])
def test_batches_whose_values_do_not_go_together(reduction: str, parts: Any) -> None:
    reduced = Reduced(reduction)
    reduced.add(parts[0], 1)
    with pytest.raises(Exception, match="differ in their names or shapes"):
        reduced.add(parts[1], 1)


def test_means_are_weighted_by_samples() -> None:
    reduced = Reduced("mean")
    reduced.add({"": np.array([1.0, 0.0])}, 3)
    reduced.add({"": np.array([5.0, 4.0])}, 1)
    assert reduced.value().tolist() == [2.0, 1.0]


@pytest.mark.parametrize("measure", [sample_metrics.error_rate, sample_metrics.f2])
def test_a_function_gets_all_examples_in_dataset_order(measure: Callable[..., Any]) -> None:
    predictions = some_predictions(50)
    results = custom_results(metrics_named(measure.__name__), Inputs.of(predictions), {})
    expected = measure(predictions.prediction, predictions.label, predictions.probabilities)
    assert results.values == {measure.__name__: float(expected)}
