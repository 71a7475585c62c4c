"""Which servers compute a model, by the version that they announce."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from dist_eval.petals.base_model.config import default_dht_prefix
from dist_eval.petals.client.petals_version import ANNOUNCED, can_chain, can_roll_back, serves, versions_needed

RELEASE, MAIN = "2.2.0.post1", "2.3.0.dev2"
LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama31": {"model_type": "llama", "rope_scaling": {**LLAMA31, "original_max_position_embeddings": 1024}},
    "biased": {"model_type": "llama", "mlp_bias": True},
    "bloom": {"model_type": "bloom"},
    "falcon": {"model_type": "falcon", "new_decoder_architecture": True},
    "falcon 7b": {"model_type": "falcon", "multi_query": True},
    "mixtral": {"model_type": "mixtral", "num_attention_heads": 32, "num_key_value_heads": 8},
    "qwen3": {"model_type": "qwen3"},
}
SERVED_BY = {name: {RELEASE, MAIN, ANNOUNCED} for name in CONFIGS} | {
    "llama31": {MAIN, ANNOUNCED},
    "biased": {MAIN, ANNOUNCED},
    "mixtral": {MAIN, ANNOUNCED},
    "falcon": {RELEASE, ANNOUNCED},
    "falcon 7b": {ANNOUNCED},
    "qwen3": {ANNOUNCED},
}
NAMES = {RELEASE: "the release, Petals 2.2", MAIN: "Petals main (2.3.0.dev2)", ANNOUNCED: "`dist-eval swarm`"}


def config_of(name: str) -> Any:
    return AutoConfig.for_model(**CONFIGS[name])


@pytest.mark.parametrize(
    ("version", "rolls_back"),
    [(RELEASE, False), ("2.2.0", False), (MAIN, True), ("2.3.0", True), (ANNOUNCED, True), (None, False), ("?", False)],
)
def test_sessions_are_rolled_back_since_2_3(version: str | None, rolls_back: bool) -> None:
    assert can_roll_back(version) is rolls_back


@pytest.mark.parametrize("name", CONFIGS)
def test_servers_that_would_fail_or_compute_something_else_do_not_count(name: str) -> None:
    config = config_of(name)
    assert {version for version in NAMES if serves(version, config)} == SERVED_BY[name]
    assert serves(None, config) is serves(RELEASE, config)
    assert {version for version, what in NAMES.items() if what in versions_needed(config)} == SERVED_BY[name]


def test_a_revision_is_a_part_of_the_name() -> None:
    assert default_dht_prefix("org/Qwen3", config_of("qwen3"), "v1.0/a") == "Qwen3-v1-0-a"


def test_a_mixtral_has_the_name_of_petals_main() -> None:
    assert default_dht_prefix("org/Mixtral-8x7B-v0.1", config_of("mixtral")) == "org/Mixtral-8x7B-v0-1"


BEFORE, AFTER = "2.3.0+dist.eval.chain2", "2.4.0+dist.eval.chain3.later"
"""What servers of ours announced before they kept deep prompts, and what they may announce one day."""


@pytest.mark.parametrize(
    ("version", "chains"),
    [(ANNOUNCED, True), (AFTER, True), (BEFORE, False), (RELEASE, False), (MAIN, False), (None, False), ("?", False)],
)
def test_only_versions_that_say_so_pass_requests_on(version: str | None, chains: bool) -> None:
    assert can_chain(version) is chains
    assert not can_chain(f"{RELEASE}+chain3")


@pytest.mark.parametrize("version", [BEFORE, AFTER])
def test_all_servers_of_ours_serve_all_models(version: str) -> None:
    assert all(serves(version, config) for config in CONFIGS.values())
