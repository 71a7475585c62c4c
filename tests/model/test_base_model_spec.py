"""The base model that a run is to use."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dist_eval import demo
from dist_eval.errors import CheckpointError, ConfigError, EvaluationError
from dist_eval.evaluation.classification import Classification
from dist_eval.model.base_model_spec import BaseModelSpec
from dist_eval.options.config import EvaluationConfig
from dist_eval.options.groups import ModelOptions
from dist_eval.petals.model.checkpoint import TunedCheckpoint

OPTIONS: dict[str, Any] = {"dataset": str(demo.TEST_DATA), "swarm": "embedded"}


@pytest.fixture
def with_adapter(tmp_path: Path) -> str:
    """The demo's checkpoint, as if it had been tuned with a LoRA adapter."""
    replace(TunedCheckpoint.load(demo.CHECKPOINT), adapter="org/lora").save(tmp_path)
    return str(tmp_path)


def spec(checkpoint: str, **options: Any) -> BaseModelSpec:
    tuned = TunedCheckpoint.load(checkpoint)
    return BaseModelSpec.read(ModelOptions(model=str(demo.BASE_MODEL), **options), tuned)


def test_the_adapter_is_the_one_that_is_asked_for_or_that_the_checkpoint_names(with_adapter: str) -> None:
    plain = str(demo.CHECKPOINT)
    assert (spec(plain).adapter, spec(plain, adapter="other").adapter) == (None, "other")
    assert (spec(with_adapter).adapter, spec(with_adapter, adapter="org/lora").adapter) == ("org/lora", "org/lora")
    assert spec(with_adapter).summary(TunedCheckpoint.load(with_adapter)).adapter == "org/lora"
    identity = spec(plain).identity()
    assert spec(with_adapter).identity() == {**identity, "--adapter": "org/lora"}
    assert list(identity) == ["base model"], "folders of earlier runs still resume"


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"adapter": "other"}, CheckpointError, r"was tuned with the adapter 'org/lora': leave out --adapter other\."),
        ({"swarm": None, "backend": "local"}, ConfigError, "--backend local cannot use the adapter 'org/lora'"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_named(
    with_adapter: str, options: dict[str, Any], kind: type[EvaluationError], words: str
) -> None:
    config = EvaluationConfig(**{**OPTIONS, "checkpoint": with_adapter, "model": str(demo.BASE_MODEL), **options})
    with pytest.raises(kind, match=words):
        Classification(config)


@pytest.mark.parametrize(
    "files",
    [
        ["pytorch_model.bin", "other.safetensors"],
        ["model.safetensors.index.json", "weights.bin", "other.safetensors"],
        ["model.safetensors.index.json"],
        [],
    ],
)
def test_weights_that_a_server_would_unpickle_are_refused(files: list[str], tmp_path: Path) -> None:
    shutil.copy(demo.BASE_MODEL / "config.json", tmp_path)
    for name in files:
        (tmp_path / name).write_text('{"weight_map": {"a": "weights.bin"}}' if name.endswith(".json") else "")
    with pytest.raises(CheckpointError, match="has no weights as safetensors, the only format that is read"):
        BaseModelSpec.read(ModelOptions(model=str(tmp_path)), TunedCheckpoint.load(demo.CHECKPOINT))


def test_a_base_model_that_a_checkpoint_was_not_tuned_on_is_refused(tiny_models: dict[str, Path]) -> None:
    options = ModelOptions(model=str(tiny_models["llama"]))
    with pytest.raises(CheckpointError, match=rf"hidden_size 96, but {tiny_models['llama']} has 64"):
        BaseModelSpec.read(options, TunedCheckpoint.load(demo.CHECKPOINT))
