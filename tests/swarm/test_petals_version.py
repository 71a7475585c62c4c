"""Which servers compute a model, by the version that they announce."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from dist_eval.swarm.petals_version import ANNOUNCED, can_roll_back, serves, versions_needed

RELEASE, MAIN = "2.2.0.post1", "2.3.0.dev2"
_SCALING = {"factor": 8.0, "original_max_position_embeddings": 1024}
_LLAMA31 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5, **_SCALING}
CONFIGS: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "llama": ("llama", {}, {RELEASE, MAIN}),
    "linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, {RELEASE, MAIN}),
    "llama31": ("llama", {"rope_parameters": _LLAMA31}, {MAIN}),
    "yarn": ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, **_SCALING}}, set()),
    "biased": ("llama", {"mlp_bias": True}, {MAIN}),
    "bloom": ("bloom", {}, {RELEASE, MAIN}),
    "falcon": ("falcon", {"new_decoder_architecture": True}, {RELEASE}),
    "falcon 7b": ("falcon", {"multi_query": True}, set()),
    "mixtral": ("mixtral", {}, {MAIN}),
    "qwen3": ("qwen3", {}, set()),
}
"""Type of model, settings, and which versions of Petals serve it."""


@pytest.mark.parametrize(
    ("version", "can"),
    [
        (RELEASE, False),
        ("2.2.0", False),
        (MAIN, True),
        ("2.3.0", True),
        (ANNOUNCED, True),
        (None, False),
        ("?", False),
    ],
)
def test_servers_before_main_cannot_roll_back_a_session(version: str | None, can: bool) -> None:
    assert can_roll_back(version) is can


@pytest.mark.parametrize("name", CONFIGS)
def test_servers_that_would_fail_or_compute_something_else_do_not_count(name: str) -> None:
    model_type, settings, versions = CONFIGS[name]
    config = AutoConfig.for_model(model_type, **settings)
    assert {version for version in (RELEASE, MAIN) if serves(version, config)} == versions
    assert serves(None, config) is serves(RELEASE, config)
    assert serves(ANNOUNCED, config)
    needed = versions_needed(config)
    assert ("Petals 2.2" in needed, "Petals main" in needed) == (RELEASE in versions, MAIN in versions)
