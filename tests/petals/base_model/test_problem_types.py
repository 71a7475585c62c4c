"""Problem types: losses, predictions and probabilities, how columns travel, and what a config says of classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dist_eval.data.collector import Collector, narrowed
from dist_eval.errors import CheckpointError
from dist_eval.metrics.metric_loading import synthetic_predictions
from dist_eval.metrics.predictions import Predictions
from dist_eval.model.base_model_spec import read_target
from dist_eval.petals.base_model.problem_types import (
    MULTI_LABEL,
    PROBLEMS,
    REGRESSION,
    SINGLE_LABEL,
    Problem,
    class_names,
    problem_from,
    problem_of,
)

logits = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 8), st.integers(1, 5)), elements=st.floats(-1e4, 1e4, width=32)
)
every_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


@settings(max_examples=60)
@given(logits, st.integers(0, 999))
def test_losses_of_several_labels_and_of_numbers_are_torchs(values: np.ndarray, seed: int) -> None:
    generator, outputs = np.random.default_rng(seed), torch.from_numpy(values).double()
    label = generator.random(values.shape) < 0.5
    expected = torch.nn.BCEWithLogitsLoss(reduction="none")(outputs, torch.from_numpy(label).double()).mean(1)
    np.testing.assert_allclose(MULTI_LABEL.loss(values, label), expected.numpy(), rtol=1e-12, atol=1e-14)
    numbers = generator.normal(size=values.shape)
    expected = torch.nn.MSELoss(reduction="none")(outputs, torch.from_numpy(numbers)).mean(1)
    np.testing.assert_allclose(REGRESSION.loss(values, numbers), expected.numpy(), rtol=1e-12)


@settings(max_examples=60)
@given(logits)
def test_a_label_is_predicted_if_it_is_more_probable_than_not(values: np.ndarray) -> None:
    probabilities = MULTI_LABEL.probabilities(values)
    np.testing.assert_allclose(
        probabilities, torch.from_numpy(values).double().sigmoid().numpy(), rtol=1e-12, atol=1e-300
    )
    far = np.abs(values) > 1e-6
    assert ((probabilities > 0.5) == MULTI_LABEL.predict(values))[far].all()


@every_problem
def test_columns_survive_a_journey_and_a_collector(problem: Problem) -> None:
    predictions = synthetic_predictions(problem, 3)
    assert predictions.problem is problem
    collector = Collector(len(predictions), Predictions.empty(3, problem).columns)
    for piece in (predictions.at(slice(4, None)), predictions.at(slice(4)), Predictions.empty(3, problem)):
        collector.add(narrowed(piece.columns, 0, len(piece)))
    for name, column in collector.sorted_by("index").items():
        np.testing.assert_array_equal(column, getattr(predictions, name))
        assert column.dtype == getattr(predictions, name).dtype


def test_the_dtype_of_labels_tells_the_problem() -> None:
    assert [problem_of(np.dtype(kind)) for kind in (np.uint8, np.bool_, np.float64)] == [
        SINGLE_LABEL,
        MULTI_LABEL,
        REGRESSION,
    ]
    with pytest.raises(ValueError, match="labels cannot be"):
        problem_of(np.dtype("U3"))


def test_a_regression_has_no_probabilities() -> None:
    with pytest.raises(ValueError, match="not probabilities"):
        _ = synthetic_predictions(REGRESSION, 2).probabilities


BERT: dict[str, Any] = {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2}


def read(folder: Path, **config: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(BERT | config))
    return read_target(None, str(folder))


def test_names_may_be_numbered_by_text_and_in_any_order() -> None:
    assert class_names({"1": "b", "0": "a"}, 2, "x") == class_names({0: "a", 1: "b"}, 2, "x") == ["a", "b"]
    assert class_names(None, 2, "x") == class_names({}, 2, "x") == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize("numbers", [(1, 2), (0, 2), (-1, 0)])
def test_names_of_other_classes_than_the_head_has_are_refused(numbers: tuple[int, int], tmp_path: Path) -> None:
    expected = rf"config\.json: id2label must name the classes 0 to 1, but names {numbers[0]}, {numbers[1]}\."
    with pytest.raises(CheckpointError, match=expected):
        read(tmp_path, id2label=dict.fromkeys(map(str, numbers), "x"))


def test_the_problem_is_the_one_that_is_named_or_transformers_default() -> None:
    assert problem_from(None, 1, "x") is REGRESSION
    assert problem_from(None, 3, "x") is SINGLE_LABEL
    assert problem_from("multi_label_classification", 3, "x") is MULTI_LABEL


@pytest.mark.parametrize("name", [[], {}, 3, "classification"])
def test_another_problem_type_is_named(name: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="problem_type"):
        problem_from(name, 2, "x")
    with pytest.raises(CheckpointError, match="problem_type"):
        read(tmp_path, problem_type=name)


@pytest.mark.parametrize("count", [2_000_000_000, 2e9])
def test_a_head_that_would_fill_the_memory_is_refused(count: float, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: num_labels is 2000000000.* at most 1000000 classes"):
        read(tmp_path, num_labels=count)
