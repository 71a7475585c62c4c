"""The catalogue of metrics: it has all metrics that are computed, and each view shows them in one order."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from dist_eval.metrics.catalogue import (
    METRICS,
    OF_CLASS,
    OF_OUTPUT,
    View,
    accuracy_names,
    is_unbounded,
    lower_is_better,
    metric_names,
)
from dist_eval.metrics.computing import compute_metrics
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.petals.base_model.problem_types import PROBLEMS, SINGLE_LABEL, Problem


def metrics_of(problem: Problem, outputs: int) -> dict[str, float]:
    metrics = compute_metrics(synthetic_predictions(problem, outputs), [str(number) for number in range(outputs)])
    assert not metrics.undefined
    return {name: value for name, value in metrics.values.items() if value is not None}


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.name)
def test_it_has_all_metrics_that_are_computed(problem: Problem) -> None:
    metrics = metrics_of(problem, 3) | (metrics_of(problem, 2) if problem is SINGLE_LABEL else {})
    catalogue = {metric.name: metric for metric in METRICS[problem.name]}
    assert catalogue.keys() == metrics.keys()
    for name, value in metrics.items():
        low, high = catalogue[name].range
        assert low <= value <= high
        assert name not in accuracy_names(problem.name) or value == metrics[accuracy_names(problem.name)[0]]


@pytest.mark.parametrize("problem", [*METRICS])
@pytest.mark.parametrize("view", get_args(View))
def test_a_view_shows_metrics_of_the_problem_type_each_once(problem: str, view: View) -> None:
    names = metric_names(problem, view)
    assert {*names} <= {metric.name for metric in METRICS[problem]}
    assert len({*names}) == len(names)


def test_a_view_has_its_own_order() -> None:
    assert metric_names("regression", "cards") == ("r2", "mae", "rmse")
    assert metric_names("regression", "slices") == ("mae", "rmse", "r2", "pearson")
    assert metric_names("multi_label_classification", "tuning") == ()
    assert metric_names("unheard of", "table") == ()


def test_what_is_known_of_a_name_holds_in_all_problem_types() -> None:
    metrics = [metric for of_problem in METRICS.values() for metric in of_problem]
    known = {(one.name, one.range, one.lower_is_better, one.over_classes) for one in metrics}
    assert len(known) == len({one.name for one in metrics})
    assert is_unbounded("mae") and not is_unbounded("r2") and not is_unbounded("mine")
    assert lower_is_better("hamming_loss") and not lower_is_better("f1_macro")


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.name)
def test_the_metrics_of_a_class_or_output_are_those_of_its_row(problem: Problem) -> None:
    metrics = compute_metrics(synthetic_predictions(problem, 3), list("abc"))
    names = OF_OUTPUT if problem.name == "regression" else (*OF_CLASS, "support")
    assert all([name for name, _ in row] == ["label", *names, "intervals"] for row in metrics.per_class)


def test_it_imports_no_library() -> None:
    program = "import sys, dist_eval.metrics.catalogue; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"numpy", "torch", "sklearn", "dist_eval.data"}.isdisjoint(done.stdout.split())
