"""Class names and problem type from a config, whatever is written there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dist_eval.data.problem_types import MULTI_LABEL, REGRESSION, SINGLE_LABEL, class_names, problem_from
from dist_eval.errors import CheckpointError
from dist_eval.model.base_model_spec import read_target

BERT: dict[str, Any] = {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2}


def read(folder: Path, **config: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(BERT | config))
    return read_target(None, str(folder))


def test_names_may_be_numbered_by_text_and_in_any_order() -> None:
    assert class_names({"1": "b", "0": "a"}, 2, "x") == class_names({0: "a", 1: "b"}, 2, "x") == ["a", "b"]
    assert class_names(None, 2, "x") == class_names({}, 2, "x") == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize("numbers", [(1, 2), (0, 2), (-1, 0)])
def test_names_of_other_classes_than_the_head_has_are_refused(numbers: tuple[int, int], tmp_path: Path) -> None:
    expected = rf"config\.json: id2label should name the classes 0 to 1, and names {numbers[0]}, {numbers[1]}\."
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
    with pytest.raises(CheckpointError, match=r"config\.json: num_labels is 2000000000.* 1000000 classes at most"):
        read(tmp_path, num_labels=count)
