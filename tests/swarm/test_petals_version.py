"""Which models the installed version of Petals serves, and which servers compute one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dist_eval.errors import CheckpointError
from dist_eval.model.base_model_spec import read_target
from dist_eval.model.classifier import classifier_of
from dist_eval.swarm.families import default_dht_prefix, max_request_tokens, read_base_config
from dist_eval.swarm.petals_version import installed_version, is_main, require_local, serves

RELEASE, MAIN = "2.2.0.post1", "2.3.0.dev2"
HERE_MAIN = is_main(installed_version())
SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama31": {"model_type": "llama", "rope_scaling": {**SCALING, "original_max_position_embeddings": 1024}},
    "biased": {"model_type": "llama", "mlp_bias": True},
    "bloom": {"model_type": "bloom"},
    "falcon": {"model_type": "falcon", "new_decoder_architecture": True},
    "mixtral": {"model_type": "mixtral", "num_attention_heads": 32, "num_key_value_heads": 8},
}
ON_SERVERS = {name: {RELEASE, MAIN} for name in CONFIGS} | {
    "llama31": {MAIN},
    "biased": {MAIN},
    "mixtral": {MAIN},
    "falcon": {RELEASE},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, config in CONFIGS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    ("version", "main"),
    [(RELEASE, False), ("2.2.0", False), (MAIN, True), ("2.3.0", True), ("3.0", True), (None, False), ("?", False)],
)
def test_main_is_2_3_or_later(version: str | None, main: bool) -> None:
    assert is_main(version) is main


@pytest.mark.parametrize("name", CONFIGS)
def test_servers_that_would_fail_or_compute_something_else_do_not_count(name: str) -> None:
    config = SimpleNamespace(**CONFIGS[name])
    assert {version for version in (RELEASE, MAIN) if serves(version, config)} == ON_SERVERS[name]
    assert serves(None, config) is serves(RELEASE, config)


def test_a_family_that_the_installed_version_cannot_serve_is_refused(folder: Path) -> None:
    name, word = ("falcon", "without `--project`") if HERE_MAIN else ("mixtral", "launch/petals-main/README.md")
    with pytest.raises(CheckpointError, match=name) as refused:
        read_base_config(str(folder / name))
    assert word in str(refused.value) and installed_version() in str(refused.value)


@pytest.mark.skipif(not HERE_MAIN, reason="Petals main is not installed")
def test_a_falcon_that_a_program_opened_is_refused_on_main() -> None:
    model = SimpleNamespace(transformer=None, config=SimpleNamespace(_name_or_path="org/falcon", **CONFIGS["falcon"]))
    with pytest.raises(CheckpointError, match="cannot serve org/falcon"):
        classifier_of(model)


@pytest.mark.parametrize("name", ["llama31", "biased"])
def test_what_the_release_does_not_know_of_a_llama_is_left_to_servers_with_main(name: str, folder: Path) -> None:
    config = read_base_config(str(folder / name))
    assert getattr(config, "rope_scaling", None) == CONFIGS[name].get("rope_scaling")
    if HERE_MAIN:
        require_local(name, config)
        return
    with pytest.raises(CheckpointError, match=rf"The blocks of {name} cannot be computed with Petals 2\.2.* main"):
        require_local(name, config)
    with pytest.raises(CheckpointError, match=r"cannot be computed with Petals 2\.2"):
        read_target(None, str(folder / name))


def test_a_mixtral_has_the_name_and_the_limit_of_petals_main() -> None:
    config = SimpleNamespace(**CONFIGS["mixtral"])
    assert default_dht_prefix("org/Mixtral-8x7B-v0.1", config) == "org/Mixtral-8x7B-v0-1"
    assert max_request_tokens(config) == 2048
