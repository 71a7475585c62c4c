"""Petals' own classifier, opened for programs of users; and servers of its release, which runs of today use."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from conftest import FAMILIES, TIMEOUT, ForkedSwarm, results_of
from foreign_records import attack, store
from tiny_models import LAYERS, VOCABULARY, random_checkpoint

from dist_eval import demo, open_petals_classifier
from dist_eval.api.petals_classifier import load_petals_classifier
from dist_eval.base_model.config import read_base_config
from dist_eval.errors import CheckpointError, ConfigError, SwarmError
from dist_eval.model.checkpoint import TunedCheckpoint
from dist_eval.model.classifier import base_fingerprint, classifier_of
from dist_eval.options.commandline import parse_args
from dist_eval.process.interpreter import has_packages_of_petals
from dist_eval.swarm.coverage import look_up_coverage

if TYPE_CHECKING:
    from dist_eval.serving.private import PrivateSwarm

ROOT = Path(__file__).parents[2]


@pytest.mark.petals_models
@pytest.mark.parametrize(("family", "mode"), [("llama", "ptune"), *((family, "deep_ptune") for family in FAMILIES)])
def test_a_checkpoint_gives_the_same_logits_in_plain_petals(
    family: str, mode: str, tmp_path: Path, family_swarms: dict[str, PrivateSwarm], swarm_client: Any
) -> None:
    import petals
    from safetensors.torch import load_file

    from dist_eval.swarm.client import leave_swarm

    tuned, swarm = random_checkpoint(mode, model_type=family), family_swarms[family]
    tuned.save(tmp_path)
    swarm_client.join(swarm)  # waits for its servers
    plain = getattr(petals, f"Distributed{family.capitalize()}ForSequenceClassification").from_pretrained(
        swarm.model,
        initial_peers=swarm.initial_peers,
        dht_prefix=swarm.dht_prefix,
        tuning_mode=tuned.tuning_mode,
        pre_seq_len=tuned.pre_seq_len,
        num_labels=tuned.num_labels,
        torch_dtype=torch.float32,
    )
    try:
        unexpected = plain.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False).unexpected_keys
        assert unexpected == []
        plain.config.pad_token_id = None  # a single text: the last token is the right one
        ids = torch.randint(0, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = plain(input_ids=ids).logits
        torch.testing.assert_close(classifier_of(plain).logits(ids, torch.tensor([9])), expected)
        plain.save_pretrained(tmp_path / "export", safe_serialization=True)
        assert TunedCheckpoint.load(tmp_path / "export").digest() == tuned.digest()
    finally:
        manager = plain.transformer.h.sequence_manager
        leave_swarm(manager.dht, manager.state.p2p, manager.shutdown)


def test_servers_that_the_user_has_blocked_get_no_data(
    family_swarms: dict[str, PrivateSwarm], swarm_client: Any, petals_classifier: Any
) -> None:
    swarm = family_swarms["llama"]
    dht = swarm_client.join(swarm)
    first = look_up_coverage(dht, swarm.dht_prefix, swarm.num_blocks, TIMEOUT).servers[0].peer_id
    blocked = load_petals_classifier(
        swarm.model, dht, dht_prefix=swarm.dht_prefix, blocked_servers=[first], num_labels=2
    )
    classifier_of(petals_classifier)
    with pytest.raises(SwarmError, match="no server that may be asked"):  # the other one does not hold all blocks
        classifier_of(blocked)


@pytest.mark.petals_models
def test_routes_of_petals_itself_survive_foreign_records(tiny_models: dict[str, Path], swarm_client: Any) -> None:
    from dist_eval.swarm.client import leave_swarm

    spans = [(0, LAYERS)]
    swarm = ForkedSwarm(str(tiny_models["llama"]), num_blocks=LAYERS, dht_prefix="attacked-llama", spans=spans)
    with swarm_client.visiting(swarm):
        dht = swarm_client.join(swarm)
        assert all(dht.run_coroutine(functools.partial(store, attack(swarm.dht_prefix))))
        manager = load_petals_classifier(swarm.model, dht, dht_prefix=swarm.dht_prefix).transformer.h.sequence_manager
        try:
            manager.make_sequence(mode="max_throughput")  # reads the list
            found = manager.state.sequence_info.spans_by_priority
            server = swarm.initial_peers[0].rpartition("/")[2]
            assert [(str(span.peer_id), span.start, span.end) for span in found] == [(server, 0, LAYERS)]
        finally:
            leave_swarm(dht, manager.state.p2p, manager.shutdown)


def test_a_checkpoint_of_other_weights_is_refused(
    tmp_path: Path, tiny_models: dict[str, Path], family_swarms: dict[str, PrivateSwarm], petals_classifier: Any
) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_models["llama"], other := tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    save_file(
        {name: tensor * 2 if name.endswith("norm.weight") else tensor for name, tensor in tensors.items()},
        other / "model.safetensors",  # without metadata, which they need not have
    )
    base = petals_classifier.transformer
    fingerprint = base_fingerprint(base.word_embeddings, base.ln_f)
    replace(random_checkpoint(None), base_fingerprint=fingerprint).save(checkpoint := tmp_path / "tuned")
    swarm = family_swarms["llama"]
    with (
        pytest.raises(CheckpointError, match="other fingerprint"),
        open_petals_classifier(
            other, swarm.initial_peers, checkpoint=checkpoint, dht_prefix=swarm.dht_prefix, timeout=TIMEOUT
        ),
    ):
        pass


class CreatesFile:
    """An object that, unpickled, creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.petals_models
@pytest.mark.parametrize("others", [[], ["prompts.safetensors"]])
def test_pickled_weights_are_not_read(others: list[str], tmp_path: Path, tiny_models: dict[str, Path]) -> None:
    shutil.copytree(tiny_models["llama"], folder := tmp_path / "pickled")
    weights = (folder / "model.safetensors").rename(tmp_path / "weights")
    for name in others:
        shutil.copy(weights, folder / name)
    torch.save(CreatesFile(tmp_path / "executed"), folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="no weights as safetensors, the only format that is read"):
        load_petals_classifier(str(folder), None, dht_prefix="pickled")
    assert not (tmp_path / "executed").exists()


@pytest.mark.skipif(has_packages_of_petals(), reason="Petals' classes can be used here")
def test_current_packages_are_refused_for_what_they_are(tiny_models: dict[str, Path]) -> None:
    with (
        pytest.raises(ConfigError, match=r"not transformers .*: use the environment of launch/petals-2\.2"),
        open_petals_classifier(tiny_models["llama"], []),
    ):
        pass


@pytest.mark.petals_models
def test_runs_are_refused_with_the_packages_of_petals() -> None:
    with pytest.raises(ConfigError, match=r"^transformers 4\..* without `--project launch/petals-2\.2`\.$"):
        parse_args(["--demo"])


@pytest.mark.petals_models
def test_a_base_model_is_read_for_servers_of_petals_own() -> None:
    assert read_base_config(str(demo.BASE_MODEL)).num_hidden_layers == LAYERS


@pytest.mark.petals_models
def test_a_run_with_todays_packages_is_exact_on_servers_of_the_release(
    demo_swarm: PrivateSwarm, tmp_path: Path
) -> None:
    command = ["uv", "run", "-q", "--project", str(ROOT), "python", "-m", "dist_eval", "--model", str(demo.BASE_MODEL)]
    command += ["--checkpoint", str(demo.CHECKPOINT), "--dataset", str(demo.TEST_DATA), "--output", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run([*command, "--initial-peers", *demo_swarm.initial_peers], env=environment, check=True)
    results = results_of(tmp_path)
    assert [server["version"] for server in results["swarm"]["servers"]] == ["2.2.0.post1"] * 2
    assert results["coverage"] == {"expected": 596, "seen": 596, "duplicates": 0, "missing": 0, "failed": 0}
    figures = results["metrics"]["accuracy"], results["metrics"]["loss"]
    assert figures == pytest.approx((0.9748, 0.07373), rel=1e-3), "those of the README"
