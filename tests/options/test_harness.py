"""The options of `dist-eval harness`."""

from __future__ import annotations

from typing import Any

import pytest

from dist_eval.errors import ConfigError
from dist_eval.options.commandline import parse_args
from dist_eval.options.harness import HARNESS, HarnessConfig

LOCAL: dict[str, Any] = {"model": "base", "backend": "local"}


def test_tasks_are_separated_by_commas_or_spaces() -> None:
    config = parse_args(["--tasks", "a,b", "my/c.yaml", "--model", "base", "--backend", "local"], HARNESS)
    assert config.tasks == ["a", "b", "my/c.yaml"]
    assert str(config.output_folder) == "runs/a-b-c"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "--model is missing: the language model to evaluate."),
        ({"tasks": [","]}, "--tasks is missing"),
        ({"limit": 0.0}, "--limit must be a whole number, or a share between 0 and 1, not 0."),
        ({"num_fewshot": -1}, "--num-fewshot must be at least 0, not -1."),
        ({"max_length": 1}, "--max-length must be at least 2, not 1."),
        ({"confidence": 1.0}, "--confidence must be between 0 and 1"),
        ({"backend": "petals"}, "No swarm was named."),
    ],
)
def test_wrong_options_are_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HarnessConfig(**{"tasks": ["a"], **LOCAL, **changes})
    assert str(caught.value).startswith(message)
